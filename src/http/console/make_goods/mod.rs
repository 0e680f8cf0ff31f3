//! What was made good to many users at once.

pub mod give;

use actix_web::http::Method;
use askama::Template;
use serde::Deserialize;
use serde_json::json;

use super::api::{List, Target};
use super::deed::{Change, Deed, Field, Plan, filled, sends};
use super::figures::{Clock, Count, full};
use super::page::{Shell, show};
use super::visit::{Shown, Visit};
use crate::domain::time::Millis;

/// A make-good and how far it is.
#[derive(Debug, Clone, Deserialize)]
struct MakeGood {
    id: String,
    state: String,
    users: Chosen,
    grant: Option<Grant>,
    reset: Option<Reset>,
    reason: String,
    matched: Count,
    given: Count,
    skipped: Count,
    amount: Count,
    undone: Count,
    by: Option<String>,
    began_at: Option<Millis>,
}

#[derive(Debug, Clone, Deserialize)]
struct Chosen {
    plan: Option<String>,
    org: Option<String>,
    ids: Option<Count>,
    refused: Option<Refused>,
}

#[derive(Debug, Clone, Deserialize)]
struct Refused {
    from: String,
    to: String,
    code: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct Grant {
    limit: String,
    amount: Count,
    expires_at: Option<Millis>,
}

#[derive(Debug, Clone, Deserialize)]
struct Reset {
    limit: String,
}

impl Chosen {
    /// Who is meant, as a sentence has it.
    fn words(&self) -> String {
        let mut parts = Vec::new();
        parts.extend(self.ids.as_ref().map(|ids| format!("{} named one by one", full(ids.0))));
        parts.extend(self.plan.as_ref().map(|plan| format!("on {plan}")));
        parts.extend(self.org.as_ref().map(|org| format!("of {org}")));
        parts.extend(self.refused.as_ref().map(|refused| {
            let code = refused.code.as_ref().map(|code| format!(" by {code}")).unwrap_or_default();
            format!("refused{code} from {} up to {}", refused.from, refused.to)
        }));
        if parts.is_empty() { "everybody".into() } else { parts.join(", ") }
    }
}

impl MakeGood {
    fn may_be_undone(&self) -> bool {
        self.state == "done"
    }

    fn undo(&self) -> String {
        Target::new("/console/make-goods/{}/undo", &[&self.id]).into()
    }
}

#[derive(Template)]
#[template(path = "make_goods.html")]
struct Page {
    shell: Shell,
    rows: Vec<MakeGood>,
    next: Option<String>,
    is_first: bool,
    start: String,
    clock: Clock,
}

pub async fn page(visit: Visit) -> Shown {
    let cursor = visit.query.get("cursor");
    let question = Target::new("/v1/admin/make-goods", &[]).with("limit", "50").with("cursor", cursor);
    let list: List<MakeGood> = visit.api.get(question).await?;
    let here = || Target::new("/console/make-goods", &[]);
    show(&Page {
        shell: visit.shell("Make-good"),
        rows: list.data,
        next: list.next_cursor.map(|next| here().with("cursor", &next).into()),
        is_first: cursor.is_empty(),
        start: here().into(),
        clock: visit.clock(),
    })
}

/// Takes back what is left of one.
pub async fn undo(visit: Visit) -> Shown {
    let id = visit.call.segment("id")?;
    let made: MakeGood = visit.api.get(Target::new("/v1/admin/make-goods/{}", &[&id])).await?;
    let deed = Deed {
        title: format!("Take back {id}"),
        of: ("Make-good".into(), "/console/make-goods".into()),
        lede: "What was used of it stays used; what is left of it goes.",
        fields: filled(&visit, vec![Field::reason()]),
        verb: "Take it back",
        is_harm: true,
    };
    if !sends(&visit) {
        return deed.form(&visit);
    }
    let changes = vec![Change {
        what: "Users who have it".into(),
        now: full(made.given.0.saturating_sub(made.undone.0)),
        then: "none".into(),
    }];
    let plan = Plan {
        method: Method::POST,
        target: Target::new("/v1/admin/make-goods/{}/undo", &[&id]),
        body: json!({"reason": visit.form.get("reason")}),
        changes,
        says: Vec::new(),
    };
    deed.go(&visit, plan, "/console/make-goods?done=undone").await
}
