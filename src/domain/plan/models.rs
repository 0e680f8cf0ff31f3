//! Known models: their aliases and prices.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::domain::document::{Fault, Node, Reader};
use crate::domain::ids::Name;
use crate::domain::quantity::MAX_PRICE;

const MAX_MODELS: usize = 1000;
const MAX_ALIASES: usize = 100;
/// Longest lease a model may ask for, in seconds.
const MAX_LEASE_SECONDS: u32 = 3600;

/// One model. Prices are micro-credits per million tokens; 0 is not priced.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    pub id: Name,
    pub aliases: Vec<Name>,
    pub input: u64,
    pub output: u64,
    /// Defaults to `input`.
    pub cache_read: u64,
    /// Defaults to `input`.
    pub cache_write: u64,
    /// The lease of a hold on this model, when it has its own.
    pub lease_seconds: Option<u32>,
}

/// The models of a tenant. Names are compared without case.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Models {
    models: Vec<Model>,
    /// Of each model, its id in lower case.
    canonical: Vec<Name>,
    /// Every id and alias in lower case, sorted, with the model's index.
    names: Vec<(Name, usize)>,
}

impl Models {
    /// Checks the names against each other. Pointers of faults are those of a
    /// document that lists the models in this order.
    pub fn new(models: Vec<Model>) -> Result<Self, Vec<Fault>> {
        let canonical: Vec<Name> = models.iter().map(|model| lower(&model.id)).collect();
        let mut faults = Vec::new();
        let mut owners: HashMap<Name, usize> = HashMap::new();
        for (index, id) in canonical.iter().enumerate() {
            if owners.insert(id.clone(), index).is_some() {
                faults.push(taken(format!("/models/{index}/id"), id));
            }
        }
        for (index, model) in models.iter().enumerate() {
            for (place, alias) in model.aliases.iter().map(lower).enumerate() {
                let owner = owners.get(&alias).copied();
                // A model may repeat its own id among its aliases.
                if owner.is_some_and(|owner| owner != index || alias != canonical[index]) {
                    faults.push(taken(format!("/models/{index}/aliases/{place}"), &alias));
                }
                owners.entry(alias).or_insert(index);
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let mut names: Vec<_> = owners.into_iter().collect();
        names.sort_unstable();
        Ok(Self { models, canonical, names })
    }

    /// Reads `{"models": [{"id", "aliases", "input", "output", "cache_read",
    /// "cache_write", "lease_seconds"}]}`, all but `id` optional.
    pub fn read(node: &Node<'_>) -> Result<Self, Vec<Fault>> {
        let models = node.read(Self::fields)?;
        Self::new(models)
    }

    /// Reads the field `models` of a document that may have others beside it;
    /// hand the result to [`Models::new`].
    pub fn fields(r: &mut Reader<'_, '_>) -> Option<Vec<Model>> {
        r.required("models").list(MAX_MODELS, |item| item.table(read_model))
    }

    /// In the order of the document.
    pub fn list(&self) -> &[Model] {
        &self.models
    }

    /// The model that goes by this id or alias.
    pub fn resolve(&self, asked: &str) -> Option<&Model> {
        self.index_of(asked).map(|index| &self.models[index])
    }

    /// The name that filters and pools are compared with: the id of the model
    /// that goes by the name asked for, else that name; in lower case.
    pub fn canonical(&self, asked: &Name) -> Name {
        match self.index_of(asked.as_str()) {
            Some(index) => self.canonical[index].clone(),
            None => lower(asked),
        }
    }

    /// The accepted form, every default spelled out.
    pub fn to_json(&self) -> Value {
        json!({ "models": self.models.iter().map(model_to_json).collect::<Vec<_>>() })
    }

    fn index_of(&self, asked: &str) -> Option<usize> {
        let compare = |name: &Name| {
            let asked = asked.bytes().map(|byte| byte.to_ascii_lowercase());
            name.as_str().bytes().cmp(asked)
        };
        let found = self.names.binary_search_by(|(name, _)| compare(name)).ok()?;
        Some(self.names[found].1)
    }
}

fn taken(pointer: String, name: &Name) -> Fault {
    Fault { pointer, message: format!("is a name that is already taken: {name}") }
}

/// Names are ASCII, so the lower-case form is a name too.
fn lower(name: &Name) -> Name {
    if !name.as_str().bytes().any(|byte| byte.is_ascii_uppercase()) {
        return name.clone();
    }
    Name::parse(&name.as_str().to_ascii_lowercase()).unwrap_or_else(|_| name.clone())
}

fn read_model(r: &mut Reader<'_, '_>) -> Option<Model> {
    let id = r.required("id").parsed(Name::parse);
    let aliases = r.optional("aliases").list(MAX_ALIASES, |alias| alias.parsed(Name::parse));
    let input = r.optional("input").amount(MAX_PRICE).unwrap_or(0);
    let output = r.optional("output").amount(MAX_PRICE).unwrap_or(0);
    let cache_read = r.optional("cache_read").amount(MAX_PRICE);
    let cache_write = r.optional("cache_write").amount(MAX_PRICE);
    let lease_seconds = r.optional("lease_seconds").number(1..=MAX_LEASE_SECONDS);
    Some(Model {
        id: id?,
        aliases: aliases.unwrap_or_default(),
        input,
        output,
        cache_read: cache_read.unwrap_or(input),
        cache_write: cache_write.unwrap_or(input),
        lease_seconds,
    })
}

fn model_to_json(model: &Model) -> Value {
    let mut json = json!({
        "id": model.id.as_str(),
        "aliases": model.aliases.iter().map(Name::as_str).collect::<Vec<_>>(),
        "input": model.input,
        "output": model.output,
        "cache_read": model.cache_read,
        "cache_write": model.cache_write,
    });
    if let Some(seconds) = model.lease_seconds {
        json["lease_seconds"] = seconds.into();
    }
    json
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(json: &str) -> Result<Models, Vec<Fault>> {
        Models::read(&Node::from_json(json.as_bytes()).expect("JSON"))
    }

    fn name(text: &str) -> Name {
        Name::parse(text).expect("a name")
    }

    #[test]
    fn ids_and_aliases_are_found_without_regard_to_case() {
        let models = read(
            r#"{"models":[{"id":"Claude-Opus","aliases":["opus","O"]},{"id":"gpt","aliases":["GPT","mini"]}]}"#,
        )
        .expect("valid");
        for (asked, id) in [("OPUS", "claude-opus"), ("claude-opus", "claude-opus"), ("o", "claude-opus")] {
            assert_eq!(models.canonical(&name(asked)).as_str(), id, "{asked}");
        }
        assert_eq!(models.canonical(&name("Mini")).as_str(), "gpt");
        assert_eq!(models.canonical(&name("Unknown-1")).as_str(), "unknown-1");
        assert_eq!(models.resolve("opus").map(|model| model.id.as_str()), Some("Claude-Opus"));
        assert_eq!(models.resolve("unknown"), None);
    }

    #[test]
    fn a_name_belongs_to_one_model() {
        let faults =
            read(r#"{"models":[{"id":"a","aliases":["x","X"]},{"id":"A"},{"id":"b","aliases":["a","x"]}]}"#)
                .expect_err("names clash");
        let pointers: Vec<&str> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
        let wanted = ["/models/1/id", "/models/0/aliases/1", "/models/2/aliases/0", "/models/2/aliases/1"];
        for pointer in wanted {
            assert!(pointers.contains(&pointer), "{pointer} in {pointers:?}");
        }
    }

    #[test]
    fn cache_prices_default_to_the_input_price() {
        let models = read(r#"{"models":[{"id":"m","input":300,"output":1500}]}"#).expect("valid");
        let model = &models.list()[0];
        assert_eq!((model.cache_read, model.cache_write), (300, 300));
    }

    #[test]
    fn prices_out_of_bounds_are_refused() {
        let faults = read(r#"{"models":[{"id":"m","input":1000000000001,"output":-1,"lease_seconds":0}]}"#)
            .expect_err("too much");
        assert_eq!(faults.len(), 3, "{faults:?}");
    }

    proptest! {
        #[test]
        fn what_is_shown_is_accepted_again(
            ids in proptest::collection::btree_set("[A-C][a-z0-9._:/-]{0,6}", 0..5),
            prices in proptest::collection::vec(0..=MAX_PRICE, 20),
            lease in proptest::option::of(1..=MAX_LEASE_SECONDS),
        ) {
            let models = ids.iter().enumerate().map(|(n, id)| Model {
                id: name(id),
                aliases: vec![name(&format!("z{n}"))],
                input: prices[n],
                output: prices[n + 5],
                cache_read: prices[n + 10],
                cache_write: prices[n + 15],
                lease_seconds: lease,
            });
            // Ids that differ by case only are one name.
            if let Ok(models) = Models::new(models.collect()) {
                let text = models.to_json().to_string();
                prop_assert_eq!(read(&text), Ok(models));
            }
        }
    }
}
