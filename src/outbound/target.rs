//! Where a call goes, as a tenant writes it.

use std::net::IpAddr;

use reqwest::Url;

/// Bytes of a URL at most.
const LENGTH_MAX: usize = 2_048;

/// An `http` or `https` URL without credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target(Url);

/// The host of a target.
pub enum Host<'t> {
    Address(IpAddr),
    Name(&'t str),
}

impl Target {
    /// Parses a URL, or says in a sentence what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > LENGTH_MAX {
            return Err(format!("must be at most {LENGTH_MAX} bytes long"));
        }
        let url = Url::parse(text).map_err(|_| "must be an absolute URL".to_owned())?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err("must begin with https:// or http://".into());
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("must not have a user or a password: messages are signed".into());
        }
        if url.fragment().is_some() {
            return Err("must not have a fragment".into());
        }
        let target = Self(url);
        if target.host().is_none() {
            return Err("must name a host".into());
        }
        Ok(target)
    }

    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    pub(super) fn url(&self) -> &Url {
        &self.0
    }

    /// However an address is written (`0x7f.1`, `2130706433`), it is one here.
    pub(super) fn host(&self) -> Option<Host<'_>> {
        let text = self.0.host_str()?;
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        Some(bare.parse().map_or(Host::Name(text), Host::Address))
    }
}
