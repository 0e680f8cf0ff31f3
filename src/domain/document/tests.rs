use super::*;
use crate::domain::ids::UserId;
use crate::domain::quantity::{MAX_AMOUNT, Ppm};

fn faults<T: std::fmt::Debug>(result: Result<T, Vec<Fault>>) -> Vec<(String, String)> {
    result.unwrap_err().into_iter().map(|fault| (fault.pointer, fault.message)).collect()
}

fn check(body: &str) -> Result<(UserId, u64, Option<Vec<Ppm>>), Vec<Fault>> {
    let node = Node::from_json(body.as_bytes()).map_err(|fault| vec![fault])?;
    node.read(|r| {
        let user = r.required("user").parsed(UserId::parse);
        let input = r.optional("input").amount(MAX_AMOUNT);
        let warn_at = r.optional("warn_at").list(2, |share| share.share());
        Some((user?, input.unwrap_or(0), warn_at))
    })
}

#[test]
fn a_good_document_is_read_in_any_order() {
    let (user, input, warn_at) = check(r#"{"warn_at":[0.8,1],"input":7,"user":"bob"}"#).unwrap();
    assert_eq!((user.as_str(), input), ("bob", 7));
    assert_eq!(warn_at, Some(vec![Ppm(800_000), Ppm::ONE]));
}

#[test]
fn every_fault_is_told_with_its_pointer() {
    let all = faults(check(r#"{"a/b~c":1,"input":-1,"warn_at":[2,"x"],"input":3,"user":null}"#));
    let pointers: Vec<&str> = all.iter().map(|(pointer, _)| &**pointer).collect();
    assert_eq!(pointers, ["/user", "/input", "/warn_at/0", "/warn_at/1", "/a~1b~0c", "/input"]);
}
