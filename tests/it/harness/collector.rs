//! A collector of traces that notes what is posted, read by the official definitions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use actix_web::web::{self, Bytes, Data};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::sync::Notify;

/// A span with its attributes as text.
#[derive(Clone, Debug)]
pub struct Came {
    pub span: Span,
    pub attributes: BTreeMap<String, String>,
    pub resource: BTreeMap<String, String>,
    /// The header field `x-collector` of the request.
    pub header: String,
}

impl Came {
    pub fn trace(&self) -> String {
        hex(&self.span.trace_id)
    }

    pub fn id(&self) -> String {
        hex(&self.span.span_id)
    }

    pub fn parent(&self) -> String {
        hex(&self.span.parent_span_id)
    }

    #[track_caller]
    pub fn says(&self, key: &str, value: impl ToString) {
        assert_eq!(self.attributes.get(key), Some(&value.to_string()), "{key} of {self:?}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &Option<AnyValue>| match value.as_ref().and_then(|any| any.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        other => panic!("an unusual value: {other:?}"),
    };
    let pairs: BTreeMap<_, _> = attributes.iter().map(|one| (one.key.clone(), text(&one.value))).collect();
    assert_eq!(pairs.len(), attributes.len(), "every key once: {attributes:?}");
    pairs
}

#[derive(Default)]
struct Kept {
    came: Mutex<Vec<Came>>,
    more: Notify,
    status: u16,
}

pub struct Collector {
    pub url: String,
    kept: Arc<Kept>,
}

impl Collector {
    /// That always answers so.
    pub fn answering(status: u16) -> Self {
        let kept = Data::new(Kept { status, ..Kept::default() });
        let (tell, told) = mpsc::channel();
        let shared = kept.clone();
        std::thread::spawn(move || {
            let app = move || App::new().app_data(shared.clone()).route("/v1/traces", web::post().to(note));
            let server =
                HttpServer::new(app).workers(1).disable_signals().bind("127.0.0.1:0").expect("a free port");
            tell.send(server.addrs()[0]).expect("somebody waits for the port");
            actix_web::rt::System::new().block_on(server.run())
        });
        let address = told.recv().expect("the collector starts");
        Self { url: format!("http://{address}"), kept: kept.into_inner() }
    }

    pub fn start() -> Self {
        Self::answering(200)
    }

    pub fn came(&self) -> Vec<Came> {
        self.kept.came.lock().unwrap().clone()
    }

    /// Waits until so many spans of calls have come, and gives all spans.
    pub async fn wait_for(&self, calls: usize) -> Vec<Came> {
        let enough = async {
            loop {
                let more = self.kept.more.notified();
                let came = self.came();
                if came.iter().filter(|came| came.span.kind == 2).count() >= calls {
                    return came;
                }
                more.await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), enough).await;
        waited.unwrap_or_else(|_| panic!("{calls} calls: {:#?}", self.came()))
    }
}

async fn note(request: HttpRequest, body: Bytes, kept: Data<Kept>) -> HttpResponse {
    assert_eq!(request.headers().get("content-type").unwrap(), "application/x-protobuf");
    let header = request.headers().get("x-collector").map_or("", |value| value.to_str().unwrap()).to_owned();
    let read = ExportTraceServiceRequest::decode(body).expect("a request of OTLP");
    let mut came = kept.came.lock().unwrap();
    for of_resource in read.resource_spans {
        let resource = texts(&of_resource.resource.expect("a resource").attributes);
        for of_scope in of_resource.scope_spans {
            assert_eq!(of_scope.scope.expect("a scope").name, "apportion");
            for span in of_scope.spans {
                let attributes = texts(&span.attributes);
                came.push(Came { span, attributes, resource: resource.clone(), header: header.clone() });
            }
        }
    }
    drop(came);
    kept.more.notify_waiters();
    HttpResponse::build(kept.status.try_into().expect("a status")).finish()
}
