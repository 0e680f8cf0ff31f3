//! Every operation that the service describes, ready to be called.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::Client;

/// What stands in a path for each of its parameters, by the name; a plain `id` by the segment
/// before it. Ids that a call could remove are nobody's.
pub struct Names {
    /// A hold of the tenant under attack.
    pub hold: String,
    /// A key of it.
    pub kid: String,
}

impl Names {
    fn fill(&self, segment: &str, name: &str) -> String {
        let filled = match (segment, name) {
            ("holds", "id") | (_, "hold") => &self.hold,
            ("plans", "id") | (_, "plan") => "p",
            ("pools", "id") | (_, "pool") => "default",
            ("tenants", "id") => "no-such-tenant",
            ("make-goods", "id") => "outage",
            ("webhooks", "id") => "no-such-webhook",
            (_, "message") => "no-such-message",
            (_, "user") => "u",
            (_, "org") => "acme",
            (_, "kid") => &self.kid,
            (_, "file") => "index.html",
            (_, "code") => "forbidden",
            (_, "version") => "1",
            _ => panic!(
                "the path parameter {{{name}}} after '{segment}' is new to this test: \
                 say in operations.rs what stands in its place"
            ),
        };
        filled.to_owned()
    }
}

/// One operation of the document.
#[derive(Debug, Clone)]
pub struct Operation {
    pub method: Method,
    /// With its parameters in braces.
    pub template: String,
    /// Filled.
    pub path: String,
    /// Any of them opens it; empty for what is public.
    pub scopes: Vec<String>,
    /// A small body that has all that must be there, if there is to be one.
    pub body: Option<Value>,
}

impl Operation {
    pub fn is_public(&self) -> bool {
        self.scopes.is_empty()
    }

    /// Whether a caller with these scopes may come in.
    pub fn admits(&self, granted: &str) -> bool {
        let granted: Vec<&str> = granted.split(' ').collect();
        // A token that speaks for a user does nothing else.
        if granted.contains(&"me") {
            return self.scopes.iter().any(|scope| scope == "me");
        }
        self.scopes.iter().any(|scope| {
            granted.contains(&scope.as_str()) || (scope == "admin:read" && granted.contains(&"admin:write"))
        })
    }

    /// Whether the path names something that is its tenant's alone.
    pub fn names_a_secret(&self) -> bool {
        self.template.contains("holds/{") || self.template.contains("{kid}")
    }

    pub fn request(
        &self,
        client: &Client,
        token: Option<&str>,
        body: Option<&Value>,
    ) -> reqwest::RequestBuilder {
        let request = client.http.request(self.method.clone(), format!("{}{}", client.url, self.path));
        let request = match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        match body {
            Some(body) => request.json(body),
            None => request,
        }
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.method, self.template)
    }
}

/// All operations of `GET /openapi.json`.
pub fn all(document: &Value, names: &Names) -> Vec<Operation> {
    let mut operations = Vec::new();
    for (template, item) in document["paths"].as_object().expect("paths") {
        for (method, described) in item.as_object().expect("operations") {
            let requirements = described["security"].as_array().cloned().unwrap_or_default();
            let scopes = requirements.iter().flat_map(|requirement| {
                let scopes = requirement["bearer"].as_array().expect("scopes of the scheme bearer");
                scopes.iter().map(|scope| scope.as_str().expect("a scope").to_owned())
            });
            let schema = described.pointer("/requestBody/content/application~1json/schema");
            operations.push(Operation {
                method: Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method"),
                template: template.clone(),
                path: fill(template, names),
                scopes: scopes.collect(),
                body: schema.map(|schema| sample(document, schema, 0)),
            });
        }
    }
    operations
}

fn fill(template: &str, names: &Names) -> String {
    let mut before = "";
    let segments = template.split('/').map(|segment| {
        let name = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        let filled = name.map_or_else(|| segment.to_owned(), |name| names.fill(before, name));
        before = segment;
        filled
    });
    segments.collect::<Vec<_>>().join("/")
}

/// The smallest value of a schema that comes to mind.
fn sample(document: &Value, schema: &Value, depth: u32) -> Value {
    if depth > 8 {
        return Value::Null;
    }
    let deeper = |schema: &Value| sample(document, schema, depth + 1);
    if let Some(reference) = schema["$ref"].as_str() {
        let pointer = reference.trim_start_matches('#');
        return deeper(document.pointer(pointer).unwrap_or_else(|| panic!("no {reference}")));
    }
    if let Some(example) = schema.get("example") {
        return example.clone();
    }
    for choice in ["oneOf", "anyOf"] {
        if let Some(first) = schema[choice].as_array().and_then(|choices| choices.first()) {
            return deeper(first);
        }
    }
    if let Some(first) = schema["enum"].as_array().and_then(|choices| choices.first()) {
        return first.clone();
    }
    let kind = schema["type"].as_array().map_or(&schema["type"], |kinds| &kinds[0]);
    match kind.as_str() {
        Some("integer" | "number") => schema.get("minimum").cloned().unwrap_or(json!(1)),
        Some("boolean") => json!(true),
        Some("string") => json!("x"),
        Some("array") => json!([deeper(&schema["items"])]),
        _ => {
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            let fields = required.iter().filter_map(Value::as_str);
            fields.map(|name| (name.to_owned(), deeper(&schema["properties"][name]))).collect()
        }
    }
}
