//! Where traces are sent, and which calls have one.

use std::fmt;

use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

/// What the collector's address ends with.
const PATH: &str = "/v1/traces";

#[derive(Clone)]
pub struct Settings {
    pub(super) url: Url,
    /// Marked as sensitive: they are never shown.
    pub(super) headers: HeaderMap,
    /// Of calls without a parent, 0 to 1.
    pub(super) ratio: f64,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("ratio", &self.ratio).finish_non_exhaustive()
    }
}

impl Settings {
    pub fn new(url: Url, headers: HeaderMap, ratio: f64) -> Self {
        Self { url, headers, ratio }
    }

    /// The collector, as far as it may be shown.
    pub fn shown(&self) -> String {
        format!("{}{}", self.url.origin().ascii_serialization(), self.url.path())
    }

    /// The collector's address, to which `/v1/traces` is added as OpenTelemetry's
    /// own programs do.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn url(text: &str) -> Result<Url, &'static str> {
        const WRONG: &str = "must be the address of a collector, such as http://127.0.0.1:4318";
        let mut url = Url::parse(text).map_err(|_| WRONG)?;
        if !["http", "https"].contains(&url.scheme()) || !url.has_host() {
            return Err(WRONG);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("must name no user: credentials belong into `otlp_headers`");
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("must have no `?` or `#`");
        }
        let base = url.path().trim_end_matches('/').to_owned();
        if !base.ends_with(PATH) {
            url.set_path(&format!("{base}{PATH}"));
        }
        Ok(url)
    }

    /// `name=value,name=value`.
    ///
    /// # Errors
    /// What is wrong; says nothing of a value.
    pub fn headers(text: &str) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (name, value) =
                pair.split_once('=').ok_or("must be `name=value`, several of them set apart by `,`")?;
            let name = HeaderName::try_from(name.trim()).map_err(|_| "has a name that no header can have")?;
            let value = HeaderValue::try_from(value.trim());
            let mut value = value.map_err(|_| format!("`{name}` has a value that no header can have"))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(headers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_added_once() {
        for (given, whole) in [
            ("http://c:4318", "http://c:4318/v1/traces"),
            ("http://c:4318/", "http://c:4318/v1/traces"),
            ("https://c/otlp/", "https://c/otlp/v1/traces"),
            ("http://c/v1/traces", "http://c/v1/traces"),
        ] {
            assert_eq!(Settings::url(given).unwrap().as_str(), whole);
        }
        for bad in ["", "c:4318", "grpc://c:4317", "http://u:p@c", "http://c?key=x", "/v1/traces"] {
            assert!(Settings::url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn headers_are_read_and_never_shown() {
        let headers = Settings::headers("Authorization=Bearer a=b, x-team = y ,").unwrap();
        assert_eq!(headers["authorization"], "Bearer a=b");
        assert_eq!(headers["x-team"], "y");
        let settings = Settings::new(Settings::url("http://c").unwrap(), headers, 1.0);
        assert!(!format!("{settings:?}").contains("Bearer"));
        for bad in ["secret", "a b=secret", "x=secret\u{7f}"] {
            let told = Settings::headers(bad).unwrap_err();
            assert!(!told.contains("secret"), "{told}");
        }
    }
}
