use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::domain::ids::{Label, UserId};
use crate::domain::quantity::{MAX_AMOUNT, Ppm};

type Told = Vec<(String, String)>;

/// Pointers and messages of what is wrong.
fn told<T: std::fmt::Debug>(result: Result<T, Vec<Fault>>) -> Told {
    result.unwrap_err().into_iter().map(|fault| (fault.pointer, fault.message)).collect()
}

fn pointers(told: &Told) -> Vec<&str> {
    told.iter().map(|(pointer, _)| &**pointer).collect()
}

fn json(text: &str) -> Node<'_> {
    Node::from_json(text.as_bytes()).unwrap()
}

/// Reads the field `x` with `read`; gives the messages when that fails.
fn field<T>(text: &str, read: impl FnOnce(Field<'_, '_>) -> Option<T>) -> Result<Option<T>, String> {
    let node = json(text);
    let result = node.read(|r| Some(read(r.optional("x"))));
    result.map_err(|faults| faults.into_iter().map(|fault| fault.message).collect::<Vec<_>>().join("; "))
}

#[derive(Debug, PartialEq)]
struct Body {
    user: UserId,
    input: u64,
    warn_at: Option<Vec<Ppm>>,
    inner: Option<bool>,
}

fn body(text: &str) -> Result<Body, Vec<Fault>> {
    json(text).read(|r| {
        let user = r.required("user").parsed(UserId::parse);
        let input = r.optional("input").amount(MAX_AMOUNT);
        let warn_at = r.optional("warn_at").list(2, |share| share.share());
        let inner = r.optional("inner").table(|r| r.required("flag").flag());
        Some(Body { user: user?, input: input.unwrap_or(0), warn_at, inner })
    })
}

#[test]
fn a_good_document_is_read_in_any_order() {
    let read = body(r#"{"inner":{"flag":true},"warn_at":[0.8,1],"input":7,"user":"bob"}"#).unwrap();
    let user = UserId::parse("bob").unwrap();
    let warn_at = Some(vec![Ppm(800_000), Ppm::ONE]);
    assert_eq!(read, Body { user, input: 7, warn_at, inner: Some(true) });
}

#[test]
fn null_is_as_good_as_absent() {
    let read = body(r#"{"user":"bob","input":null,"warn_at":null,"inner":null}"#).unwrap();
    assert_eq!((read.input, read.warn_at, read.inner), (0, None, None));
    assert_eq!(told(body(r#"{"user":null}"#)), [("/user".into(), "is required".into())]);
}

#[test]
fn every_fault_is_told_with_its_pointer() {
    let told = told(body(r#"{"input":-1,"warn_at":[2,null,"x"],"inner":{"flag":1,"a/b~c":0},"extra":1}"#));
    assert_eq!(pointers(&told), ["/user", "/input", "/warn_at", "/inner/flag", "/inner/a~1b~0c", "/extra"]);
    let told = self::told(body(r#"{"user":"","warn_at":[2,null],"inner":[]}"#));
    assert_eq!(pointers(&told), ["/user", "/warn_at/0", "/warn_at/1", "/inner"]);
    assert_eq!(told[2].1, "must not be null");
}

#[test]
fn repeated_fields_are_faults_known_or_not() {
    let told = told(body(r#"{"input":1,"user":"a","x":1,"input":1,"x":2,"input":3}"#));
    let twice = "is given more than once";
    let expected = [("/input", twice), ("/x", twice), ("/input", twice), ("/x", "is not a known field")];
    assert_eq!(told, expected.map(|(pointer, message)| (pointer.into(), message.into())));
}

#[test]
fn repeated_fields_are_found_however_they_are_read() {
    let node = json(r#"{"a":1,"b":{"c":[{"d":1,"d":2}]},"a":2}"#);
    let read = node.read(|r| {
        let has = r.has("a");
        r.skip("b");
        r.optional("a").amount(9).filter(|_| has)
    });
    assert_eq!(pointers(&told(read)), ["/a", "/b/c/0/d"]);
    let fields: Vec<String> = (0..40).map(|n| format!(r#""f{}":0"#, n % 39)).collect();
    let text = format!("{{{}}}", fields.join(","));
    let read =
        json(&text).read(|r| r.names().into_iter().try_for_each(|name| r.optional(name).amount(0).map(drop)));
    assert_eq!(pointers(&told(read)), ["/f0"]);
}

#[test]
fn a_document_that_is_no_table_is_a_fault_of_the_whole() {
    for text in ["[]", "null", "1", "\"user\""] {
        assert_eq!(told(body(text)), [(String::new(), "must be an object".into())], "{text}");
    }
}

#[test]
fn nothing_is_built_from_a_reader_that_gave_up_silently() {
    assert_eq!(pointers(&told(json("{}").read(|_| None::<()>))), [""]);
}

#[test]
fn amounts_are_whole_numbers_in_range() {
    let amount = |text: &str| field(text, |x| x.amount(MAX_AMOUNT));
    assert_eq!(amount(r#"{"x":9007199254740991}"#), Ok(Some(MAX_AMOUNT)));
    assert_eq!(amount(r#"{"x":0}"#), Ok(Some(0)));
    for bad in
        ["9007199254740992", "18446744073709551615", "1e400", "-1", "-0", "1.0", "1e3", "\"1\"", "true"]
    {
        let text = format!(r#"{{"x":{bad}}}"#);
        let refused = Node::from_json(text.as_bytes()).map_or(true, |_| amount(&text).is_err());
        assert!(refused, "{bad}");
    }
    assert_eq!(
        field(r#"{"x":0}"#, |x| x.number(1..=3600u32)),
        Err("must be a whole number from 1 to 3600".into())
    );
    assert_eq!(field(r#"{"x":255}"#, |x| x.number(1..=255u8)), Ok(Some(255)));
    assert!(field(r#"{"x":256}"#, |x| x.number(1..=255u8)).is_err());
}

#[test]
fn shares_are_exact_millionths() {
    let share = |text: &str| field(text, |x| x.share());
    for millionths in (0..=1_000_000).step_by(7) {
        let text = format!(r#"{{"x":{}}}"#, f64::from(millionths) / 1e6);
        assert_eq!(share(&text), Ok(Some(Ppm(millionths))), "{text}");
    }
    assert_eq!(share(r#"{"x":1}"#), Ok(Some(Ppm::ONE)));
    for bad in ["1.000001", "-0.1", "0.1234567", "1e300", "\"0.5\"", "2", "true"] {
        assert!(share(&format!(r#"{{"x":{bad}}}"#)).is_err(), "{bad}");
    }
    let toml = Node::from_toml("x = nan").unwrap();
    assert!(toml.read(|r| r.optional("x").share()).is_err());
}

#[test]
fn texts_and_words_are_checked() {
    let words = [("day", 1), ("week", 2)];
    assert_eq!(field(r#"{"x":"week"}"#, |x| x.choice(&words)), Ok(Some(2)));
    for bad in [r#"{"x":"Week"}"#, r#"{"x":2}"#] {
        assert_eq!(field(bad, |x| x.choice(&words)), Err("must be one of: day, week".into()));
    }
    assert_eq!(field(r#"{"x":"äb"}"#, |x| x.text_up_to(3).map(str::len)), Ok(Some(3)));
    assert!(field(r#"{"x":"äbc"}"#, |x| x.text_up_to(3).map(str::len)).is_err());
    assert!(field(r#"{"x":1}"#, |x| x.text().map(str::len)).is_err());
    let long = field(r#"{"x":[1,2,3]}"#, |x| x.list(2, |item| item.amount(9)));
    assert_eq!(long, Err("must have at most 2 items".into()));
}

#[test]
fn a_field_may_be_looked_at_before_it_is_read() {
    let period = |text: &str| {
        field(text, |x| match x.is_table() {
            true => x.table(|r| r.required("hours").amount(9)),
            false => x.choice(&[("day", 24)]),
        })
    };
    assert_eq!(period(r#"{"x":{"hours":5}}"#), Ok(Some(5)));
    assert_eq!(period(r#"{"x":"day"}"#), Ok(Some(24)));
    let node = json(r#"{"gone":null,"here":1}"#);
    let seen = node.read(|r| Some((r.is_null("gone"), r.has("gone"), r.has("here"), r.has("absent"))));
    assert_eq!(seen, Ok((true, false, true, false)));
}

#[test]
fn names_may_be_data() {
    let amounts = |text: &str| {
        json(text).read(|r| {
            let mut amounts = Vec::new();
            for name in r.names() {
                let amount = r.optional(name).amount(9);
                match Label::parse(name) {
                    Ok(label) => amounts.extend(amount.map(|amount| (label.to_string(), amount))),
                    Err(error) => r.fault(name, error.to_string()),
                }
            }
            Some(amounts)
        })
    };
    let read = amounts(r#"{"images":2,"minutes":3}"#).unwrap();
    assert_eq!(read, [("images".to_owned(), 2), ("minutes".to_owned(), 3)]);
    assert_eq!(pointers(&told(amounts(r#"{"a":1,"B":1,"a":2,"c":10}"#))), ["/a", "/B", "/c"]);
}

#[test]
fn wide_documents_are_read_and_their_faults_bounded() {
    let wide: Vec<String> = (0..5000).map(|n| format!(r#""f{n}":{n}"#)).collect();
    let text = format!("{{{}}}", wide.join(","));
    let node = json(&text);
    assert_eq!(node.read(|r| Some(r.optional("f4999").amount(9999))).unwrap_err().len(), reader::MAX_FAULTS);
    let sum =
        node.read(|r| r.names().into_iter().map(|name| r.optional(name).amount(9999)).sum::<Option<u64>>());
    assert_eq!(sum, Ok(4999 * 5000 / 2));
}

#[test]
fn what_is_not_json_is_told_with_its_place() {
    let fault = Node::from_json(b"{\"a\":1,\n \"b\":}").unwrap_err();
    assert_eq!(fault.pointer, "");
    assert!(fault.message.starts_with("is not valid JSON: "), "{fault}");
    assert!(fault.message.ends_with("at line 2 column 6"), "{fault}");
    let bad: [&[u8]; 14] = [
        b"",
        b" ",
        b"{} {}",
        b"{}x",
        b"{\"a\":NaN}",
        b"[Infinity]",
        b"{'a':1}",
        b"{\"a\":1,}",
        b"[01]",
        b"\"\\ud800\"",
        b"\"\xff\"",
        b"{\"\xc3\x28\":1}",
        b"\xef\xbb\xbf{}",
        b"\"a\nb\"",
    ];
    for bytes in bad {
        assert!(Node::from_json(bytes).is_err(), "{}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn nesting_is_bounded() {
    let json = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(Node::from_json(json(MAX_DEPTH).as_bytes()).is_ok());
    let fault = Node::from_json(json(MAX_DEPTH + 1).as_bytes()).unwrap_err();
    assert!(fault.message.contains("nested deeper than 32 levels"), "{fault}");
    assert!(Node::from_json("[".repeat(60_000).as_bytes()).is_err());
    let tables = format!("[{}]\n", vec!["a"; MAX_DEPTH + 1].join("."));
    assert!(Node::from_toml(&tables).is_err());
}

#[test]
fn texts_are_borrowed_unless_they_hold_escapes() {
    let node = json(r#"{"plain":"é","esc\u0061ped":"a\nb"}"#);
    let Node::Table(entries) = &node else { panic!("a table") };
    let [(plain, Node::Text(Cow::Borrowed("é"))), (escaped, Node::Text(Cow::Owned(text)))] = &entries[..]
    else {
        panic!("{entries:?}")
    };
    assert!(matches!(plain, Cow::Borrowed("plain")));
    assert_eq!((&**escaped, &**text), ("escaped", "a\nb"));
}

#[test]
fn toml_and_json_say_the_same() {
    let toml = r#"
        id = "free"
        weight = 1.0
        since = 2026-11-30T14:59:59Z
        [per_call]
        max = 4000
        [[limits]]
        name = "a"
        warn_at = [0.8, 0.95]
        period = { hours = 5 }
    "#;
    let json = r#"{"id":"free","weight":1.0,"since":"2026-11-30T14:59:59Z","per_call":{"max":4000},
        "limits":[{"name":"a","warn_at":[0.8,0.95],"period":{"hours":5}}]}"#;
    let value = |node: Node<'_>| serde_json::to_value(node).unwrap();
    let toml = Node::from_toml(toml).unwrap();
    assert_eq!(toml.get("id").and_then(Node::as_text), Some("free"));
    assert_eq!(value(toml), value(self::json(json)));
    let fault = Node::from_toml("a = 1\nb = ]").unwrap_err();
    assert!(fault.message.contains("line 2 column 5"), "{fault}");
    assert!(Node::from_toml("a = 1\na = 2").is_err(), "a repeated field");
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::hash_map(any::<String>(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Bytes that are often nearly JSON.
fn almost_json() -> impl Strategy<Value = Vec<u8>> {
    let cut = (any_json(), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(value, index, byte)| {
        let mut bytes = value.to_string().into_bytes();
        let at = index.index(bytes.len());
        bytes[at] = byte;
        bytes
    });
    let tokens = r#"([\[\]{},:0-9eE+.\- \\"]|true|null|"a"){0,40}"#.prop_map(String::into_bytes);
    prop_oneof![cut, tokens, prop::collection::vec(any::<u8>(), 0..64)]
}

proptest! {
    #[test]
    fn valid_json_means_what_another_parser_says(value in any_json()) {
        let text = value.to_string();
        let node = Node::from_json(text.as_bytes()).unwrap();
        let again: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(serde_json::to_value(&node).unwrap(), again);
    }

    #[test]
    fn any_bytes_are_parsed_or_refused_as_another_parser_does(bytes in almost_json()) {
        let ours = Node::from_json(&bytes);
        let theirs = serde_json::from_slice::<Value>(&bytes);
        prop_assert_eq!(ours.is_ok(), theirs.is_ok());
        if let Ok(node) = ours {
            let _ = node.read(|r| {
                let names = r.names();
                names.into_iter().map(|name| r.optional(name).text()).for_each(drop);
                Some(())
            });
        }
    }

    #[test]
    fn any_text_is_toml_or_refused(text in r#"([a-z\[\]{}=,.0-9\n "'#-]|\PC){0,60}"#) {
        let _ = Node::from_toml(&text);
    }
}
