//! Whether the console itself sent a form.

use actix_web::http::header::{self, HeaderMap};

/// Browsers say where a request comes from in a field that no page can write. Whoever says nothing
/// is no browser that people use, and is refused.
pub fn is_own(headers: &HeaderMap) -> bool {
    if let Some(site) = text(headers, "sec-fetch-site") {
        return site == "same-origin";
    }
    let origin = text(headers, header::ORIGIN.as_str());
    let host = text(headers, header::HOST.as_str());
    let authority = origin.and_then(|origin| origin.split_once("://")).map(|(_, authority)| authority);
    authority.is_some() && authority == host
}

/// Whether a link of another site led here. Browsers then keep the session's cookie back.
pub fn is_from_elsewhere(headers: &HeaderMap) -> bool {
    text(headers, "sec-fetch-site").is_some_and(|site| matches!(site, "cross-site" | "same-site"))
}

/// Whether the browser speaks https: it says so itself, or what ends TLS before us does. Whoever
/// lies about it gets a cookie that is of no use to them.
pub fn is_https(headers: &HeaderMap) -> bool {
    let begins = |name, start: &str| text(headers, name).is_some_and(|value| value.starts_with(start));
    begins(header::ORIGIN.as_str(), "https://") || begins("x-forwarded-proto", "https")
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::{HeaderName, HeaderValue};

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn only_the_same_origin_is_our_own() {
        let host = ("host", "console.example:8080");
        for own in [
            &[host, ("sec-fetch-site", "same-origin")][..],
            &[host, ("origin", "https://console.example:8080")],
            // A proxy that changes the host leaves what the browser says of the site.
            &[("host", "127.0.0.1:8080"), ("origin", "https://a.example"), ("sec-fetch-site", "same-origin")],
        ] {
            assert!(is_own(&headers(own)), "{own:?}");
        }
        for other in [
            &[host][..],
            &[host, ("origin", "null")],
            &[host, ("origin", "https://console.example")],
            &[host, ("origin", "https://evil.example")],
            &[host, ("origin", "https://console.example:8080"), ("sec-fetch-site", "same-site")],
            &[host, ("sec-fetch-site", "cross-site")],
            &[host, ("sec-fetch-site", "none")],
        ] {
            assert!(!is_own(&headers(other)), "{other:?}");
        }
    }

    #[test]
    fn the_browser_or_its_proxy_says_whether_it_speaks_https() {
        assert!(is_https(&headers(&[("origin", "https://a.example")])));
        assert!(is_https(&headers(&[("x-forwarded-proto", "https")])));
        assert!(!is_https(&headers(&[("origin", "http://a.example"), ("x-forwarded-proto", "http")])));
    }
}
