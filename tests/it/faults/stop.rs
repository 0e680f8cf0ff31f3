//! A stop in good order: whoever only listens does not hold it up.

use std::time::{Duration, Instant};

use super::process::Process;
use crate::harness::{Client, Events, cli};

#[tokio::test]
async fn open_streams_end_when_the_service_stops() {
    let kept = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a data directory");
    cli(kept.path(), &["tenant", "create", "t"]);
    let token = cli(kept.path(), &["token", "mint", "--tenant", "t", "--user", "u"]);
    let process = Process::serve(kept.path(), "os");
    let client = Client::new(&process.url, &token);
    let mut events = Events::open(&client).await.unwrap_or_else(|reply| panic!("{}", reply.text));
    events.quota().await;
    let begun = Instant::now();
    process.terminate();
    assert_eq!(events.end().await, 0);
    process.wait();
    // Requests in flight would be given 30 s.
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}
