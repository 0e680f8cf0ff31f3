//! The API description: OpenAPI 3.1, made from the handlers and the views.
//!
//! What is the same for every route is added here and not written at each:
//! the shape of problems, and the refusals that any call may meet.

use std::collections::BTreeMap;

use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{AllOfBuilder, ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Content, Ref, RefOr, Response};
use utoipa::{Modify, OpenApi};

use super::admin::{
    capacity, clock, consumers, doubts, events, export, keys, make_goods, models, movers, orgs, outputs,
    plans, pools, preview, records, refusals, settings, tenants, tuning, users, webhooks,
};
use super::{check, feedback, health, holds, own_use, problem, quota, usage, widget};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Apportion",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    paths(
        check::check, check::check_batch,
        holds::settle, holds::settle_batch, holds::release, holds::extend, holds::get, holds::find,
        usage::record,
        quota::of_user, quota::of_me, quota::stream, own_use::of_me,
        plans::all, plans::get, plans::put, plans::versions, plans::restore, preview::preview, tuning::get,
        users::all, users::get, users::put, users::erase, users::change_plan, users::put_overrides, users::grant,
        orgs::get, orgs::put, orgs::quota, orgs::put_overrides, orgs::grant,
        records::user_ledger, refusals::explain, make_goods::all, make_goods::get, make_goods::put, make_goods::undo, records::audit, records::decisions, records::features, consumers::consumers, consumers::duplicates,
        movers::movers,
        outputs::all,
        doubts::all, doubts::resolve, doubts::resolve_all,
        events::usage, export::user,
        pools::all, pools::get, pools::put, pools::open,
        feedback::tell,
        models::get, models::put,
        settings::get, settings::put,
        keys::all, keys::create, keys::delete,
        webhooks::all, webhooks::create, webhooks::get, webhooks::put, webhooks::delete,
        webhooks::renew_secret, webhooks::test, webhooks::deliveries, webhooks::retry,
        clock::get, clock::put,
        capacity::check,
        tenants::all, tenants::create, tenants::get, tenants::put, tenants::delete,
        health::livez, health::readyz, health::metrics,
        health::openapi_json, health::docs_file, health::problem_page, widget::script,
    ),
    components(schemas(
        problem::ProblemView, problem::FaultView, problem::ViolationView,
        problem::ShapedProblem,
    )),
    tags(
        (name = "checks", description = "Before a call: may it be made?"),
        (name = "holds", description = "After a call: what was used?"),
        (name = "usage", description = "Use that had no hold"),
        (name = "quota", description = "What a user has left"),
        (name = "admin", description = "Plans, users, pools, models, settings, keys"),
        (name = "operator", description = "The products that this installation serves"),
        (name = "health", description = "Probes and metrics"),
        (name = "documents", description = "This description and the pages of problems"),
    ),
    modifiers(&Common, &Problems, &QuotaRows),
)]
struct Document;

const INTRODUCTION: &str = "Per-user plans in front of every model call: check, hold, settle.\n\n\
    Amounts are whole numbers up to 9007199254740991, times are RFC 3339 in UTC with milliseconds. \
    Unknown body fields are refused, unknown query parameters ignored. Every error is \
    `application/problem+json` with a `code` that never changes its meaning; `?shape=openai` and \
    `?shape=anthropic` (or the setting `shape`, for calls) tell it in that vendor's form, and add the \
    vendor's own rate limit headers to a decision.";

/// The description as JSON, the same text for the same program.
pub fn json() -> String {
    // A document of strings and numbers: it can always be written.
    Document::openapi().to_pretty_json().map(|text| text + "\n").unwrap_or_default()
}

struct Common;

impl Modify for Common {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .bearer_format("JWT")
            .description(Some(
                "A token signed by one of the product's keys (`aud` = `apportion`, `exp` required), or an \
                 API key (`ap_...`). Beside each route stand the scopes that reach it.",
            ))
            .build();
        document.info.description = Some(INTRODUCTION.into());
        let components = document.components.get_or_insert_default();
        components.security_schemes.insert("bearer".into(), SecurityScheme::Http(bearer).into());
    }
}

/// Refusals that any call with credentials may meet.
const WITH_CREDENTIALS: [(&str, &str); 5] = [
    ("400", "`invalid_request`: `errors` lists every fault"),
    ("401", "`unauthenticated`"),
    ("403", "`forbidden`, `tenant_suspended`"),
    ("429", "`ingress_rate_exceeded`: retry as `Retry-After` says"),
    ("503", "`store_unavailable`, `overloaded`: retry as `Retry-After` says"),
];
/// And any call that may have a body.
const WITH_BODY: [(&str, &str); 3] =
    [("408", "`request_timeout`"), ("413", "`body_too_large`"), ("415", "`unsupported_media_type`")];

struct Problems;

impl Modify for Problems {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        components.parameters.insert("shape".into(), shape_parameter().into());
        for item in document.paths.paths.values_mut() {
            let [get, others @ ..] = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete];
            get.iter_mut().for_each(|operation| add_problems(operation, false));
            others.into_iter().flatten().for_each(|operation| add_problems(operation, true));
        }
    }
}

/// The query parameter that all routes with credentials know.
fn shape_parameter() -> Parameter {
    let words =
        ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["none", "openai", "anthropic"]));
    let text = "In whose form errors and rate limits are told; `none`: as problems.";
    ParameterBuilder::new()
        .name("shape")
        .parameter_in(ParameterIn::Query)
        .description(Some(text))
        .schema(Some(words))
        .build()
}

fn add_problems(operation: &mut Operation, may_have_body: bool) {
    let has_shapes = operation.security.is_some();
    if has_shapes {
        operation
            .parameters
            .get_or_insert_default()
            .push(RefOr::Ref(Ref::new("#/components/parameters/shape")));
    }
    let responses = &mut operation.responses.responses;
    let mut add = |status: &str, description: &str| {
        responses.entry(status.into()).or_insert_with(|| Response::new(description).into());
    };
    if operation.security.is_some() {
        WITH_CREDENTIALS.iter().for_each(|(status, description)| add(status, description));
    }
    if may_have_body {
        WITH_BODY.iter().for_each(|(status, description)| add(status, description));
    }
    for (status, response) in responses.iter_mut() {
        if let RefOr::T(response) = response
            && status.as_str() >= "400"
        {
            let problem = Content::new(Some(Ref::from_schema_name("Problem")));
            response.content.insert("application/problem+json".into(), problem.into());
            if has_shapes {
                let shaped = Content::new(Some(Ref::from_schema_name("ShapedProblem")));
                response.content.insert("application/json".into(), shaped.into());
            }
        }
    }
}

/// Generators of clients know objects that are one of several, and objects that have what another
/// has, but not both at once: so a quota's row is one of several that have all of it.
struct QuotaRows;

impl Modify for QuotaRows {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let schemas = &mut document.components.get_or_insert_default().schemas;
        let Some(RefOr::T(Schema::AllOf(row))) = schemas.remove("QuotaRow") else { return };
        let mut rows = OneOfBuilder::new().description(row.description);
        let [RefOr::Ref(shown), state] = row.items.as_slice() else { return };
        for kind in kinds(schemas, name_of(shown)) {
            let parts = [kind.as_str(), "QuotaRowState"].map(Ref::from_schema_name);
            let all = parts.into_iter().fold(AllOfBuilder::new(), AllOfBuilder::item);
            let name = format!("Quota{kind}");
            rows = rows.item(Ref::from_schema_name(&name));
            schemas.insert(name, all.into());
        }
        schemas.insert("QuotaRowState".into(), state.clone());
        schemas.insert("QuotaRow".into(), rows.into());
        schemas.remove("ShownRow");
    }
}

/// The objects of which one is meant by a name.
fn kinds(schemas: &BTreeMap<String, RefOr<Schema>>, name: &str) -> Vec<String> {
    let Some(RefOr::T(Schema::OneOf(one))) = schemas.get(name) else { return vec![name.to_owned()] };
    let refs = one.items.iter().filter_map(|item| match item {
        RefOr::Ref(to) => Some(name_of(to)),
        RefOr::T(_) => None,
    });
    refs.flat_map(|name| kinds(schemas, name)).collect()
}

fn name_of(reference: &Ref) -> &str {
    reference.ref_location.rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::auth::Access;
    use super::super::routes::ROUTES;
    use super::*;

    /// (method, path, scopes) of every row of the table of routes. Redirects
    /// to the documents are no part of the API.
    fn served() -> BTreeSet<(String, String, Vec<String>)> {
        let described = ROUTES.iter().filter(|route| !matches!(route.path, "/docs" | "/docs/"));
        described
            .map(|route| {
                let mut scopes: Vec<String> = match route.access {
                    Access::Public => vec![],
                    Access::Own => vec!["me".into()],
                    Access::AnyOf(scopes) => scopes.iter().map(|scope| scope.names()[0].to_owned()).collect(),
                };
                scopes.sort();
                (route.method.as_str().to_lowercase(), route.path.to_owned(), scopes)
            })
            .collect()
    }

    #[test]
    fn describes_exactly_the_routes_with_their_scopes() {
        let document: serde_json::Value = serde_json::from_str(&json()).unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        let mut described = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let requirements = operation["security"].as_array().cloned().unwrap_or_default();
                let mut scopes: Vec<String> = requirements
                    .iter()
                    .flat_map(|requirement| requirement["bearer"].as_array().unwrap())
                    .map(|scope| scope.as_str().unwrap().to_owned())
                    .collect();
                scopes.sort();
                described.insert((method.clone(), path.clone(), scopes));
            }
        }
        assert_eq!(described, served());
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let text = json();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        for part in text.split("\"$ref\": \"#").skip(1) {
            let pointer = part.split('"').next().unwrap();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
    }
}
