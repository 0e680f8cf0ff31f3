//! Where settings come from, and what is wrong with them.

use super::*;

fn load(file: Option<&str>, environment: &[(&str, &str)], flags: Flags) -> Result<Config, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("settings.toml");
    if let Some(text) = file {
        std::fs::write(&path, text).unwrap();
    }
    let environment = environment.iter().map(|(name, value)| (name.into(), value.into()));
    Config::from_sources(file.map(|_| path.as_path()), environment, &flags).map_err(|e| e.to_string())
}

#[test]
fn the_defaults_are_usable_and_name_every_setting() {
    let config = load(None, &[], Flags::default()).unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
    assert!(matches!(config.stores, Stores::Embedded(Durability::Commit)));
    assert!(config.workers >= 1);
}

#[test]
fn later_sources_win() {
    let file = Some("listen = \"127.0.0.1:1\"\ndata = \"from-file\"\nworkers = 3");
    let environment = [("APPORTION_LISTEN", "127.0.0.1:2"), ("APPORTION_DATA", "77"), ("OTHER", "x")];
    let config = load(file, &environment, Flags::default()).unwrap();
    assert_eq!((config.listen.port(), config.workers), (2, 3));
    assert_eq!(config.data, Path::new("77"), "text stays text");
    let flags = Flags { listen: Some("localhost:3".into()), data: None };
    assert_eq!(load(file, &environment, flags).unwrap().listen.port(), 3);
}

#[test]
fn an_unknown_key_is_named_with_its_place() {
    let error = load(Some("lisen = \"x\""), &[], Flags::default()).unwrap_err();
    assert!(error.contains("`lisen`") && error.contains("settings.toml"), "{error}");
    let error = load(None, &[("APPORTION_WORKER", "2")], Flags::default()).unwrap_err();
    assert!(error.contains("`worker`") && error.contains("APPORTION_WORKER"), "{error}");
}

#[test]
fn every_bad_value_is_told_at_once() {
    let environment = [
        ("APPORTION_DURABILITY", "maybe"),
        ("APPORTION_LISTEN", "8080"),
        ("APPORTION_WORKERS", "5000"),
        ("APPORTION_LOG", "apportion=loud"),
        ("APPORTION_TZDIR", "/no/such/directory"),
    ];
    let error = load(None, &environment, Flags::default()).unwrap_err();
    for (name, _) in environment {
        assert!(error.contains(&format!("({name})")), "{name} is missing in {error}");
    }
    let error = load(None, &[("APPORTION_WORKERS", "many")], Flags::default()).unwrap_err();
    assert!(error.contains("`workers`") && error.contains("APPORTION_WORKERS"), "{error}");
}

#[test]
fn several_nodes_need_both_stores_and_no_password_is_ever_shown() {
    let redis = ("APPORTION_REDIS_URL", "redis://u:hunter2@host");
    let database = ("APPORTION_DATABASE_URL", "postgres://u:hunter2@host/db");
    for name in [redis, database] {
        let error = load(None, &[name], Flags::default()).unwrap_err();
        assert!(error.contains("is missing") && error.contains(name.0), "{error}");
        assert!(!error.contains("hunter2"));
    }
    let config = load(None, &[redis, database], Flags::default()).unwrap();
    let Stores::Shared { answers: Answers::ByEngine, .. } = config.stores else { panic!("{config:?}") };
    assert!(!format!("{config:?}").contains("hunter2"));
    for (durability, of_both) in [("commit", false), ("os", false), ("engine", true), ("ledger", true)] {
        let durability = ("APPORTION_DURABILITY", durability);
        assert_eq!(load(None, &[durability], Flags::default()).is_ok(), !of_both, "{durability:?}");
        let many = load(None, &[redis, database, durability], Flags::default());
        assert_eq!(many.is_ok(), of_both, "{durability:?}");
    }
}

#[test]
fn a_server_key_is_what_its_file_holds_and_is_never_shown() {
    let name = "APPORTION_SERVER_KEY";
    for bad in ["12ab", &"x".repeat(64), &"+".repeat(43)] {
        let error = load(None, &[(name, bad)], Flags::default()).unwrap_err();
        assert!(error.contains("43 letters") && !error.contains(bad), "{error}");
    }
    let key = "n4bQgYhMfWWaL-qgxVrQFaO_TxsrC4Is0V1sFbDwCgg";
    let config = load(None, &[(name, key)], Flags::default()).unwrap();
    assert!(config.server_key.is_some() && !format!("{config:?}").contains(key), "{config:?}");
}

#[test]
fn variables_that_are_no_settings_are_left_alone() {
    let environment = [
        ("APPORTION_SERVICE_HOST", "10.0.0.1"),
        ("APPORTION_PORT", "tcp://x"),
        ("APPORTION_LOG", ""),
        ("APPORTION_URL", "http://x"),
    ];
    assert!(load(None, &environment, Flags::default()).unwrap().log.filter.starts_with("info"));
}

#[test]
fn a_missing_or_broken_file_is_said_to_be_so() {
    let missing = Config::from_sources(Some(Path::new("/no/such.toml")), [], &Flags::default());
    assert!(missing.unwrap_err().to_string().contains("/no/such.toml"));
    let error = load(Some("listen = "), &[], Flags::default()).unwrap_err();
    assert!(error.contains("settings.toml"), "{error}");
}

#[test]
fn holds_are_kept_longer_than_anybody_may_correct_them_or_for_ever() {
    let keep = |days| load(None, &[("APPORTION_KEEP_HOLDS_DAYS", days)], Flags::default());
    let days = |days: u64| Some(Duration::from_secs(days * 86_400));
    assert_eq!(load(None, &[], Flags::default()).unwrap().keep_holds, days(400));
    assert_eq!(keep("35").unwrap().keep_holds, days(35));
    assert_eq!(keep("0").unwrap().keep_holds, None);
    for too_few in ["1", "34"] {
        let error = keep(too_few).unwrap_err();
        assert!(error.contains("`keep_holds_days`") && error.contains("35"), "{error}");
    }
}

#[test]
fn traces_are_sent_where_a_collector_is_named_and_what_is_wrong_is_told_without_secrets() {
    assert!(load(None, &[], Flags::default()).unwrap().traces.is_none());
    let environment = [
        ("APPORTION_OTLP_ENDPOINT", "http://collector:4318"),
        ("APPORTION_OTLP_SAMPLE_RATIO", "0.5"),
        ("APPORTION_OTLP_HEADERS", "authorization=secret"),
    ];
    let traces = load(None, &environment, Flags::default()).unwrap().traces.unwrap();
    assert_eq!(traces.shown(), "http://collector:4318/v1/traces");
    assert!(load(None, &[("APPORTION_OTLP_SAMPLE_RATIO", "1")], Flags::default()).is_ok());
    let environment = [
        ("APPORTION_OTLP_ENDPOINT", "grpc://user:secret@collector"),
        ("APPORTION_OTLP_SAMPLE_RATIO", "1.5"),
        ("APPORTION_OTLP_HEADERS", "secret"),
    ];
    let error = load(None, &environment, Flags::default()).unwrap_err();
    for (name, _) in environment {
        assert!(error.contains(&format!("({name})")), "{name} is missing in {error}");
    }
    assert!(!error.contains("secret"), "{error}");
}
