//! Keys are replaced while calls are made with them.

use super::kill::{Book, Callers, prepare, verify};
use super::process::Process;
use crate::api::authorization::callers::{api_key, remove_key};
use crate::harness::Client;

const ROTATIONS: usize = 4;
/// Calls with each key before the one before it goes, and after that.
const SOME: usize = 60;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_rotated_under_traffic_and_nobody_is_refused() {
    let kept = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let token = prepare(kept.path(), "os").await;
    let process = Process::serve(kept.path(), "os");
    let admin = Client::new(&process.url, &token);
    let book = Book::default();
    let mut present: Option<(String, Client, Callers)> = None;
    for round in 0..ROTATIONS {
        let (kid, secret) = api_key(&admin, &["check", "quota"]).await;
        let client = Client::new(&process.url, &secret);
        let mut callers = Callers::start(&client, &book, round);
        callers.answered(SOME).await;
        if let Some((old_kid, old_client, old_callers)) = present.take() {
            old_callers.stop().await;
            remove_key(&admin, &old_kid).await;
            old_client.quota("u0").await.refused(401, "unauthenticated");
            callers.answered(2 * SOME).await;
        }
        present = Some((kid, client, callers));
    }
    process.kill();
    present.expect("the last one").2.end().await;
    let process = Process::serve(kept.path(), "os");
    verify(&Client::new(&process.url, &token), &book, 0).await;
}
