//! A reply, with the questions that tests ask of it.

use std::collections::HashMap;

use serde_json::Value;

#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    /// Names in lower case.
    pub headers: HashMap<String, String>,
    /// Null when the body is empty or no JSON.
    pub body: Value,
    pub text: String,
}

impl Reply {
    pub async fn read(response: reqwest::Response) -> Self {
        let status = response.status().as_u16();
        let headers = response
            .headers()
            .iter()
            .map(|(n, v)| (n.as_str().to_owned(), String::from_utf8_lossy(v.as_bytes()).into_owned()))
            .collect();
        let text = response.text().await.expect("a body that ends");
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Self { status, headers, body, text }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or("")
    }

    /// The body of a success.
    #[track_caller]
    pub fn ok(self) -> Value {
        assert!((200..300).contains(&self.status), "{} {}", self.status, self.text);
        self.body
    }

    /// A problem with this status and code, in the form that every problem has.
    #[track_caller]
    pub fn refused(self, status: u16, code: &str) -> Self {
        assert_eq!((self.status, self.code()), (status, code), "{}", self.text);
        self.assert_problem();
        self
    }

    /// RFC 9457, and what this service promises of every problem.
    #[track_caller]
    pub fn assert_problem(&self) {
        let body = &self.body;
        assert!(
            self.header("content-type").is_some_and(|t| t.starts_with("application/problem+json")),
            "{:?} {}",
            self.headers,
            self.text
        );
        assert_eq!(body["status"], self.status, "{body}");
        assert_eq!(body["type"], format!("/problems/{}", self.code()), "{body}");
        for name in ["title", "detail"] {
            assert!(body[name].as_str().is_some_and(|t| !t.is_empty()), "no {name}: {body}");
        }
        let retryable = body["retryable"].as_bool().unwrap_or_else(|| panic!("no retryable: {body}"));
        let should = self.header("x-should-retry").unwrap_or_else(|| panic!("no x-should-retry: {body}"));
        if !retryable {
            assert_eq!(should, "false", "{body}");
            assert_eq!(self.header("retry-after"), None, "{body}");
            assert_eq!(self.header("retry-after-ms"), None, "{body}");
        }
    }

    /// The id of the hold in a reply that has one.
    #[track_caller]
    pub fn hold_id(&self) -> String {
        let id = self.body["hold"]["id"].as_str();
        id.unwrap_or_else(|| panic!("no hold in {} {}", self.status, self.text)).to_owned()
    }

    /// The row of one limit.
    #[track_caller]
    pub fn row(&self, name: &str) -> Value {
        row(&self.body, name)
    }
}

/// The row of one limit in a body.
#[track_caller]
pub fn row(body: &Value, name: &str) -> Value {
    body["limits"]
        .as_array()
        .and_then(|rows| rows.iter().find(|r| r["name"] == name))
        .unwrap_or_else(|| panic!("no row {name} in {body}"))
        .clone()
}
