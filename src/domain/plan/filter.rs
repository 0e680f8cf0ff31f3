//! Which checks a limit counts.

use std::borrow::Cow;

use super::{Filter, Models, Pool};

impl Filter {
    /// Whether every check is counted.
    pub fn is_empty(&self) -> bool {
        self.models.is_empty() && self.features.is_empty()
    }

    /// Whether a check of this model and feature is counted.
    ///
    /// `model` is the canonical name (aliases resolved, lower case). A check
    /// without a model is counted only by an empty list or by `*`; the same
    /// goes for features.
    pub fn matches(&self, model: Option<&str>, feature: Option<&str>) -> bool {
        list_matches(&self.models, model) && list_matches(&self.features, feature)
    }

    /// The filter with aliases replaced by the models they stand for, so that
    /// a limit on `sonnet` counts the model of that alias. Globs stay as they
    /// are and are compared with canonical names.
    ///
    /// Use the result for matching only: a limit's identity is that of the
    /// filter as written, whatever an alias points to at the time.
    pub fn resolved(&self, models: &Models) -> Filter {
        let resolve = |glob: &String| match models.resolve(glob) {
            Some(model) => model.id.as_str().to_ascii_lowercase(),
            None => glob.clone(),
        };
        Filter { models: self.models.iter().map(resolve).collect(), features: self.features.clone() }
    }

    /// Whether everything that `other` counts is surely counted here too.
    /// Errs on the side of no.
    pub fn covers(&self, other: &Filter) -> bool {
        list_covers(&self.models, &other.models) && list_covers(&self.features, &other.features)
    }

    /// How closely the globs describe the model (canonical, lower case): the
    /// literal characters of the best one that matches, `None` when none does.
    /// Of several pools the one with the most serves; among equals the first
    /// by id.
    pub fn specificity(&self, model: Option<&str>) -> Option<usize> {
        best_literal(&self.models, model)
    }

    /// Whether every check is counted.
    pub fn is_everything(&self) -> bool {
        list_is_everything(&self.models) && list_is_everything(&self.features)
    }
}

impl Pool {
    /// What the pool is for, as a filter; see [`Filter::resolved`] for aliases.
    pub fn filter(&self) -> Filter {
        Filter { models: self.models.clone(), features: Vec::new() }
    }

    /// [`Filter::specificity`] of the globs as written.
    pub fn specificity(&self, model: Option<&str>) -> Option<usize> {
        best_literal(&self.models, model)
    }
}

fn best_literal(globs: &[String], model: Option<&str>) -> Option<usize> {
    let matching = globs.iter().filter(|glob| match model {
        Some(model) => glob_matches(glob, model),
        None => is_anything(glob),
    });
    matching.map(|glob| literal_characters(glob)).max()
}

/// The list in the form that decides identity: sorted, each once, and empty
/// when it matches everything.
pub(super) fn normal_form(globs: &[String]) -> Vec<Cow<'_, str>> {
    if list_is_everything(globs) {
        return Vec::new();
    }
    let mut globs: Vec<Cow<'_, str>> = globs.iter().map(|glob| Cow::Borrowed(glob.as_str())).collect();
    globs.sort_unstable();
    globs.dedup();
    globs
}

pub(super) fn list_matches(globs: &[String], name: Option<&str>) -> bool {
    globs.is_empty()
        || globs.iter().any(|glob| match name {
            Some(name) => glob_matches(glob, name),
            None => is_anything(glob),
        })
}

fn list_is_everything(globs: &[String]) -> bool {
    globs.is_empty() || globs.iter().any(|glob| is_anything(glob))
}

fn list_covers(ours: &[String], theirs: &[String]) -> bool {
    if list_is_everything(ours) {
        return true;
    }
    // An empty list of theirs is everything, which ours is not.
    !theirs.is_empty() && theirs.iter().all(|their| ours.iter().any(|our| glob_covers(our, their)))
}

fn glob_covers(ours: &str, theirs: &str) -> bool {
    let prefix = ours.strip_suffix('*');
    ours == theirs
        || (!has_wildcard(theirs) && glob_matches(ours, theirs))
        || prefix.is_some_and(|prefix| !has_wildcard(prefix) && theirs.starts_with(prefix))
}

/// `*`, `**`, ...
pub(super) fn is_anything(glob: &str) -> bool {
    !glob.is_empty() && glob.bytes().all(|byte| byte == b'*')
}

pub(super) fn has_wildcard(glob: &str) -> bool {
    glob.bytes().any(|byte| matches!(byte, b'*' | b'?'))
}

fn literal_characters(glob: &str) -> usize {
    glob.bytes().filter(|byte| !matches!(byte, b'*' | b'?')).count()
}

/// `*` stands for any characters, none included; `?` for exactly one. Names
/// are ASCII, so bytes are characters.
///
/// On a mismatch only the last `*` is tried again, one character further: an
/// earlier one could not reach more. So the work is at most glob x name.
pub(super) fn glob_matches(glob: &str, name: &str) -> bool {
    let (glob, name) = (glob.as_bytes(), name.as_bytes());
    let (mut at_glob, mut at_name) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while at_name < name.len() {
        match glob.get(at_glob) {
            Some(b'*') => {
                retry = Some((at_glob + 1, at_name));
                at_glob += 1;
            }
            Some(&wanted) if wanted == b'?' || wanted == name[at_name] => {
                at_glob += 1;
                at_name += 1;
            }
            _ => {
                let Some((after_star, covered)) = retry else { return false };
                at_glob = after_star;
                at_name = covered + 1;
                retry = Some((after_star, covered + 1));
            }
        }
    }
    glob[at_glob..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn filter(models: &[&str], features: &[&str]) -> Filter {
        let own = |list: &[&str]| list.iter().map(|glob| (*glob).to_owned()).collect();
        Filter { models: own(models), features: own(features) }
    }

    #[test]
    fn globs_match_like_a_shell() {
        for (glob, name) in
            [("*", ""), ("*", "x"), ("opus*", "opus"), ("opus*", "opus-4"), ("*-mini", "gpt-mini-mini")]
        {
            assert!(glob_matches(glob, name), "{glob} should match {name}");
        }
        for (glob, name) in [("a?c", "abc"), ("*b*d*", "abcde"), ("**", "x"), ("a*?", "ab")] {
            assert!(glob_matches(glob, name), "{glob} should match {name}");
        }
        for (glob, name) in [("opus*", "my-opus"), ("a?c", "ac"), ("a", "ab"), ("*b", "abc"), ("?", "")] {
            assert!(!glob_matches(glob, name), "{glob} should not match {name}");
        }
    }

    #[test]
    fn a_check_without_a_model_is_counted_by_everything_only() {
        assert!(filter(&[], &[]).matches(None, None));
        assert!(filter(&["*"], &[]).matches(None, None));
        assert!(!filter(&["opus*"], &[]).matches(None, None));
        assert!(!filter(&["?*"], &[]).matches(None, None));
        assert!(!filter(&[], &["chat"]).matches(Some("opus"), None));
        assert!(filter(&["opus*"], &["chat"]).matches(Some("opus-4"), Some("chat")));
        assert!(!filter(&["opus*"], &["chat"]).matches(Some("opus-4"), Some("search")));
    }

    #[test]
    fn coverage_is_never_claimed_wrongly() {
        let covers = |ours: &[&str], theirs: &[&str]| filter(ours, &[]).covers(&filter(theirs, &[]));
        assert!(covers(&[], &["opus*"]));
        assert!(covers(&["*"], &[]));
        assert!(covers(&["opus*"], &["opus-4*", "opus"]));
        assert!(covers(&["*-mini", "a"], &["a", "x-mini"]));
        assert!(!covers(&["opus*"], &[]));
        assert!(!covers(&["opus*"], &["*"]));
        assert!(!covers(&["opus-?"], &["opus-*"]));
        assert!(!covers(&["opus-4*"], &["opus*"]));
    }

    proptest! {
        #[test]
        fn globs_agree_with_an_independent_matcher(
            glob in "[ab*?]{0,8}",
            name in "[ab]{0,10}",
        ) {
            // Where each prefix of the glob can end in the name, by table.
            let mut reach = vec![false; name.len() + 1];
            reach[0] = true;
            for wanted in glob.bytes() {
                let mut next = vec![false; name.len() + 1];
                for end in 0..=name.len() {
                    next[end] = match wanted {
                        b'*' => reach[..=end].iter().any(|reached| *reached),
                        _ if end == 0 => false,
                        b'?' => reach[end - 1],
                        byte => reach[end - 1] && name.as_bytes()[end - 1] == byte,
                    };
                }
                reach = next;
            }
            prop_assert_eq!(glob_matches(&glob, &name), reach[name.len()]);
        }

        #[test]
        fn what_covers_matches_more(
            ours in "[ab*?]{1,4}",
            theirs in "[ab*?]{1,4}",
            name in "[ab]{0,6}",
        ) {
            let (ours, theirs) = (filter(&[&ours], &[]), filter(&[&theirs], &[]));
            if ours.covers(&theirs) && theirs.matches(Some(&name), None) {
                prop_assert!(ours.matches(Some(&name), None));
            }
        }
    }
}
