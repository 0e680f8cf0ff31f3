use super::*;

fn tracer(ratio: f64, queue: usize) -> (Tracer, mpsc::Receiver<Ended>) {
    let (queue, queued) = mpsc::channel(queue);
    let threshold = (ratio * u64::MAX as f64) as u64;
    (Tracer { threshold, queue, counts: Arc::default() }, queued)
}

#[tokio::test]
async fn what_works_for_a_call_adds_to_it_until_it_ends() {
    let (tracer, mut queued) = tracer(1.0, 1);
    let recording = tracer.begin(None, || true).unwrap();
    within(Some(&recording), async {
        let _step = span("step");
        note(|| [("key", "value".into())]);
    })
    .await;
    let late = within(Some(&recording), async { span("late") }).await;
    tracer.end(recording, "name".into(), false);
    drop(late);
    let ended = queued.recv().await.unwrap();
    let names: Vec<_> = ended.known.steps.iter().map(|step| step.name).collect();
    assert_eq!((names, ended.known.attributes.as_slice()), (vec!["step"], &[("key", "value".into())][..]));
}

#[tokio::test]
async fn nothing_is_told_of_calls_that_are_not_traced() {
    let told = || -> [Attribute; 1] { panic!("nobody listens") };
    note(told);
    within(None, async {
        note(told);
        assert!(span("step").is_none() && current().is_none());
    })
    .await;
    let (never, _queued) = tracer(0.0, 1);
    assert!(never.begin(None, || true).is_none());
    let (always, _queued) = tracer(1.0, 1);
    assert!(always.begin(None, || false).is_none());
}

#[tokio::test]
async fn a_share_of_calls_begins_a_trace() {
    let (tracer, _queued) = tracer(0.25, 1);
    let begun = (0..10_000).filter(|_| tracer.begin(None, || true).is_some()).count();
    assert!((2_000..3_000).contains(&begun), "{begun}");
}

#[tokio::test]
async fn what_finds_no_room_is_dropped_and_counted() {
    let (tracer, _queued) = tracer(1.0, 1);
    let call = async || {
        let recording = tracer.begin(None, || true).unwrap();
        within(Some(&recording), async { (0..SPANS_MAX + 3).for_each(|_| drop(span("step"))) }).await;
        tracer.end(recording, "call".into(), false);
    };
    call().await;
    assert_eq!(tracer.counts.dropped.load(Relaxed), 3, "beyond what a call may have");
    call().await;
    assert_eq!(tracer.counts.dropped.load(Relaxed), 3 + 3 + SPANS_MAX as u64 + 1, "no room for the call");
}
