//! As much of a browser as the console needs: it keeps the cookie, follows where it is sent, and
//! says where its forms come from.

use std::collections::BTreeSet;
use std::sync::Mutex;

use reqwest::Method;

use crate::harness::{Client, Reply};

pub struct Browser {
    http: reqwest::Client,
    pub url: String,
    pub cookie: Mutex<Option<String>>,
}

impl Browser {
    /// Nobody has signed in.
    pub fn new(client: &Client) -> Self {
        let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy();
        let http = http.build().expect("a client");
        Self { http, url: client.url.clone(), cookie: Mutex::new(None) }
    }

    /// Signed in with this token.
    pub async fn signed_in(client: &Client, token: &str) -> Self {
        let browser = Self::new(client);
        let reply = browser.post("/console/sign-in", &[("credential", token)]).await;
        assert_eq!((reply.status, reply.header("location")), (303, Some("/console")), "{}", reply.text);
        browser
    }

    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url));
        match &*self.cookie.lock().unwrap() {
            Some(cookie) => request.header("cookie", cookie),
            None => request,
        }
    }

    pub async fn send(&self, request: reqwest::RequestBuilder) -> Reply {
        let reply = Reply::read(request.send().await.expect("the service answers")).await;
        if let Some(cookie) = reply.header("set-cookie") {
            let pair = cookie.split(';').next().unwrap_or_default();
            *self.cookie.lock().unwrap() = (!pair.ends_with('=')).then(|| pair.to_owned());
        }
        reply
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send(self.request(Method::GET, path)).await
    }

    /// A page that must be there.
    pub async fn page(&self, path: &str) -> String {
        let reply = self.get(path).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        reply.text
    }

    /// A form as a page of ours sends it, less its mark.
    pub async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Reply {
        self.send(form(self.request(Method::POST, path).header("origin", &self.url), fields)).await
    }

    /// A form with the mark of the page on which it stands.
    pub async fn submit(&self, path: &str, fields: &[(&str, &str)]) -> Reply {
        let mark = mark(&self.page(path.split('?').next().unwrap_or(path)).await);
        let mut fields = fields.to_vec();
        fields.push(("mark", &mark));
        self.post(path, &fields).await
    }
}

/// Fields as a browser sends them.
pub fn form(request: reqwest::RequestBuilder, fields: &[(&str, &str)]) -> reqwest::RequestBuilder {
    let pairs = fields.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value)));
    let body = pairs.collect::<Vec<_>>().join("&");
    request.header("content-type", "application/x-www-form-urlencoded").body(body)
}

/// A segment of a path, or a value.
pub fn encode(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    text.bytes().map(|b| if plain(&b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// The mark that the forms of a page carry.
pub fn mark(html: &str) -> String {
    let after = html.split("name=\"mark\" value=\"").nth(1).unwrap_or_default();
    after.split('"').next().unwrap_or_default().to_owned()
}

/// Where the page's links and parts lead within the console.
pub fn links(html: &str) -> BTreeSet<String> {
    let texts = ["href=\"", "data-live=\""].into_iter().flat_map(|start| html.split(start).skip(1));
    let paths = texts.filter_map(|text| text.split('"').next());
    let ours = paths.filter(|path| path.starts_with("/console") && !path.contains("/assets/"));
    ours.map(|path| path.replace("&amp;", "&").replace("&#38;", "&")).collect()
}
