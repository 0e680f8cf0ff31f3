//! Users on record.

use apportion::ledger::{AuditQuery, Group, Ledger, LedgerError, Signals, User, UserQuery};

use super::Room;
use super::samples::*;

async fn put(ledger: &dyn Ledger, users: impl IntoIterator<Item = User>) {
    for user in users {
        ledger.put_user(TENANT, user, written()).await.unwrap();
    }
}

async fn ids(ledger: &dyn Ledger, query: UserQuery) -> Vec<String> {
    let found = ledger.users(TENANT, query).await.unwrap();
    found.iter().map(|user| user.id.as_str().to_owned()).collect()
}

fn first(limit: u32) -> UserQuery {
    UserQuery { limit, ..UserQuery::default() }
}

pub async fn a_user_reads_back_as_written(room: impl Room) {
    let ledger = room.open().await;
    let full = User {
        plan_sequence: Some(i64::MAX as u64),
        org: Some(name("acme")),
        verified: true,
        suspended: true,
        zone: Some("America/Argentina/ComodRivadavia".into()),
        anchor_day: Some(31),
        signals: Some(Signals { device: Some("d\"'\u{0}".into()), address: None }),
        plan_since: at(-1),
        ..person("full")
    };
    for user in [full, person("bare")] {
        put(&*ledger, [user.clone()]).await;
        assert_eq!(ledger.user(TENANT, user.id.clone()).await.unwrap().map(as_written), Some(user.clone()));
        let listed = ledger.users(TENANT, first(10)).await.unwrap();
        assert!(listed.into_iter().map(as_written).any(|listed| listed == user));
    }
    assert_eq!(ledger.user(TENANT, user("nobody")).await.unwrap().map(as_written), None);
}

pub async fn a_user_is_replaced_only_by_the_next_version(room: impl Room) {
    let ledger = room.open().await;
    let version = |version, plan: &str| User { version, plan: name(plan), ..person("u_1") };
    let refused = async |user: User| {
        let answer = ledger.put_user(TENANT, user, written()).await;
        assert!(matches!(answer, Err(LedgerError::Conflict)), "{answer:?}");
    };
    refused(version(2, "early")).await;
    refused(version(0, "zero")).await;
    put(&*ledger, [version(1, "free")]).await;
    refused(version(1, "again")).await;
    refused(version(3, "ahead")).await;
    put(&*ledger, [version(2, "pro")]).await;
    refused(version(u32::MAX, "far")).await;
    assert_eq!(ledger.user(TENANT, user("u_1")).await.unwrap().map(as_written), Some(version(2, "pro")));
}

pub async fn many_users_are_replaced_all_or_none(room: impl Room) {
    let ledger = room.open().await;
    let odd = ["u'1", "u\"2", "U_1", "u_1", "\u{fc}"];
    put(&*ledger, odd.map(person)).await;
    let read = async |id: &str| ledger.user(TENANT, user(id)).await.unwrap().unwrap();
    let mut pairs = Vec::new();
    for id in odd {
        let old = read(id).await;
        let new = User { version: 2, suspended: true, ..old.clone() };
        pairs.push((old, new));
    }
    let revision = ledger.revision().await.unwrap();
    let refused = async |pairs: Vec<(User, User)>| {
        let answer = ledger.put_users(TENANT, pairs, written()).await;
        assert!(matches!(answer, Err(LedgerError::Conflict)), "{answer:?}");
    };
    // One who is nobody, one who was changed meanwhile, one of another tenant.
    let nobody = person("nobody");
    refused([pairs.clone(), vec![(nobody.clone(), User { version: 2, ..nobody })]].concat()).await;
    let ahead = (User { version: 2, ..pairs[1].0.clone() }, User { version: 3, ..pairs[1].0.clone() });
    refused(vec![pairs[0].clone(), ahead]).await;
    refused(vec![(pairs[0].0.clone(), User { version: 3, ..pairs[0].0.clone() })]).await;
    let elsewhere = ledger.put_users(OTHER, pairs.clone(), written()).await;
    assert!(matches!(elsewhere, Err(LedgerError::Conflict)), "{elsewhere:?}");
    assert_eq!(ledger.revision().await.unwrap(), revision);
    assert!(!read("u_1").await.suspended);

    ledger.put_users(TENANT, pairs.clone(), written()).await.unwrap();
    for (_, new) in &pairs {
        // When they came, and when their plan changed, is as it was.
        assert_eq!(read(new.id.as_str()).await, *new);
    }
    assert_eq!(ledger.revision().await.unwrap(), revision + 1);
    let asked = AuditQuery { target: Some("u'1".into()), limit: 10, ..AuditQuery::default() };
    let audit = ledger.audit(TENANT, asked).await.unwrap();
    assert_eq!((audit.len(), audit[0].action.as_str()), (2, "user.put"));
    assert!(audit[0].old.is_some() && audit[0].new.is_some());
    ledger.put_users(TENANT, Vec::new(), written()).await.unwrap();
}

pub async fn odd_user_ids_are_told_apart_byte_for_byte(room: impl Room) {
    let ledger = room.open().await;
    let mut odd = vec![
        "Alice@X.com",
        "alice@x.com",
        "jos\u{e9}",
        "jose\u{301}",
        "a",
        "a b",
        "a  b",
        "A",
        "a/b:{c}",
        "%",
        "_",
        "a%",
        "0",
        "00",
        "1",
        "1.0",
        "1e3",
        "-1",
        "\u{1F600}",
        "\u{10FFFD}",
        "\u{FFFD}",
        "ß",
        "ss",
        "'",
        "\"",
        "\\",
        "null",
        "true",
        "x'00'",
        "\u{130}",
        "i",
        "[\"a\"]",
    ];
    put(&*ledger, odd.iter().map(|id| person(id))).await;
    let holds: Vec<_> = (0..).zip(&odd).map(|(number, id)| hold(id, number)).collect();
    let changes = holds.iter().map(|hold| {
        let mut step = change(hold);
        step.usage = Some(delta(1, 1));
        let owner = hold.user.as_str();
        step.accounts = vec![(key(apportion::domain::plan::Scope::User, owner), owner.as_bytes().into())];
        step
    });
    ledger.commit(changes.collect()).await.unwrap();
    for (hold, id) in holds.iter().zip(&odd) {
        assert_eq!(ledger.user(TENANT, user(id)).await.unwrap().unwrap().id.as_str(), *id);
        let account = ledger.account(key(apportion::domain::plan::Scope::User, id), at(0)).await.unwrap();
        assert_eq!(account.state.as_deref(), Some(id.as_bytes()), "{id:?}");
        assert_eq!(account.unfinished.iter().map(|found| found.id).collect::<Vec<_>>(), [hold.id], "{id:?}");
    }
    assert_eq!(ledger.usage(TENANT, Group::User, 0..i32::MAX).await.unwrap().len(), odd.len());
    odd.sort_unstable_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
    assert_eq!(ids(&*ledger, first(1000)).await, odd);
    for part in ["\u{e9}", "e\u{301}", "%", "_", "A", "0", "\\", "'"] {
        let query = UserQuery { contains: Some(part.into()), ..first(1000) };
        let expected: Vec<&str> = odd.iter().filter(|id| id.contains(part)).copied().collect();
        assert_eq!(ids(&*ledger, query).await, expected, "containing {part:?}");
        let query = UserQuery { prefix: Some(part.into()), ..first(1000) };
        let expected: Vec<&str> = odd.iter().filter(|id| id.starts_with(part)).copied().collect();
        assert_eq!(ids(&*ledger, query).await, expected, "beginning with {part:?}");
    }
    for (id, longer) in odd.iter().zip(&odd[1..]) {
        let query = UserQuery { after: Some((*id).to_owned()), ..first(1) };
        assert_eq!(ids(&*ledger, query).await, [*longer], "after {id:?}");
    }
}

pub async fn users_page_without_gap_or_repeat(room: impl Room) {
    let ledger = room.open().await;
    let mut all: Vec<String> = (0..25).map(|number| format!("u_{}", number * 7 % 25)).collect();
    put(&*ledger, all.iter().map(|id| person(id))).await;
    all.sort();
    let (mut paged, mut after) = (Vec::new(), None);
    loop {
        let page = ids(&*ledger, UserQuery { after: after.clone(), ..first(4) }).await;
        let Some(last) = page.last() else { break };
        after = Some(last.clone());
        paged.extend(page);
        // Whoever comes behind the page's end is found, before it is not.
        if paged.len() == 8 {
            put(&*ledger, [person("u_0a"), person("u_99")]).await;
            all.push("u_99".into());
        }
    }
    assert_eq!(paged, all);
    assert_eq!(ids(&*ledger, first(0)).await, [""; 0]);
}

pub async fn users_are_filtered_by_plan_org_and_part_of_the_id(room: impl Room) {
    let ledger = room.open().await;
    let make =
        |id: &str, plan: &str, org: Option<&str>| User { plan: name(plan), org: org.map(name), ..person(id) };
    let all = [
        make("a1", "free", None),
        make("a2", "pro", Some("acme")),
        make("b1", "pro", None),
        make("b2", "free", Some("acme")),
        make("b3", "pro", Some("acme")),
        make("c1", "Pro", Some("Acme")),
    ];
    put(&*ledger, all).await;
    let find = async |plan: Option<&str>, org: Option<&str>, contains: Option<&str>, after: Option<&str>| {
        let query = UserQuery {
            after: after.map(str::to_owned),
            contains: contains.map(str::to_owned),
            plan: plan.map(name),
            org: org.map(name),
            limit: 10,
            ..UserQuery::default()
        };
        ids(&*ledger, query).await
    };
    assert_eq!(find(Some("pro"), None, None, None).await, ["a2", "b1", "b3"]);
    assert_eq!(find(None, Some("acme"), None, None).await, ["a2", "b2", "b3"]);
    assert_eq!(find(Some("pro"), Some("acme"), None, None).await, ["a2", "b3"]);
    assert_eq!(find(Some("pro"), Some("acme"), Some("b"), None).await, ["b3"]);
    assert_eq!(find(Some("pro"), None, None, Some("a2")).await, ["b1", "b3"]);
    assert_eq!(find(None, None, Some("2"), None).await, ["a2", "b2"]);
    let begins = |prefix: &str, after: Option<&str>, upto: Option<&str>| UserQuery {
        prefix: Some(prefix.into()),
        after: after.map(str::to_owned),
        upto: upto.map(str::to_owned),
        ..first(10)
    };
    assert_eq!(ids(&*ledger, begins("b", None, None)).await, ["b1", "b2", "b3"]);
    assert_eq!(ids(&*ledger, begins("b", Some("b1"), None)).await, ["b2", "b3"]);
    assert_eq!(ids(&*ledger, begins("b", Some("a2"), Some("b2"))).await, ["b1", "b2"]);
    assert_eq!(ids(&*ledger, begins("", None, Some("a2"))).await, ["a1", "a2"]);
    assert_eq!(ids(&*ledger, begins("B", None, None)).await, [""; 0]);
    assert_eq!(ledger.nth_user(TENANT, first(0), 2).await.unwrap().as_deref(), Some("b1"));
    let of_pro = UserQuery { plan: Some(name("pro")), contains: Some("x".into()), ..begins("b", None, None) };
    assert_eq!(ledger.nth_user(TENANT, of_pro.clone(), 1).await.unwrap().as_deref(), Some("b3"));
    assert_eq!(ledger.nth_user(TENANT, of_pro, 2).await.unwrap(), None);
    // A user who changes plan leaves the old list.
    put(&*ledger, [User { version: 2, ..make("a2", "free", None) }]).await;
    assert_eq!(find(Some("pro"), None, None, None).await, ["b1", "b3"]);
    assert_eq!(find(None, Some("acme"), None, None).await, ["b2", "b3"]);
}

pub async fn users_belong_to_their_tenant(room: impl Room) {
    let ledger = room.open().await;
    put(&*ledger, [person("u_1")]).await;
    assert_eq!(ledger.user(OTHER, user("u_1")).await.unwrap().map(as_written), None);
    assert_eq!(ledger.users(OTHER, first(10)).await.unwrap(), []);
    ledger.put_user(OTHER, person("u_1"), written()).await.unwrap();
    assert_eq!(ids(&*ledger, first(10)).await, ["u_1"]);
}
