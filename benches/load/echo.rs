//! The floor: what actix-web takes for a JSON request and a JSON answer of
//! the same sizes as a check's, with no work in between.

use actix_web::web::{self, Bytes, Data};
use actix_web::{App, HttpResponse, HttpServer};
use serde::{Deserialize, Serialize};

use crate::requests::check_for;

#[derive(Deserialize)]
struct Request {
    user: String,
    request_id: Option<String>,
    model: Option<String>,
    feature: Option<String>,
    priority: Option<String>,
    input_tokens: u64,
    max_output_tokens: u64,
    lease_seconds: u64,
}

#[derive(Serialize)]
struct Reply<'a> {
    decision: &'static str,
    user: &'a str,
    request_id: Option<&'a str>,
    model: Option<&'a str>,
    feature: Option<&'a str>,
    priority: Option<&'a str>,
    input_tokens: u64,
    max_output_tokens: u64,
    lease_seconds: u64,
    /// Brings the reply to the wanted length.
    filler: &'a str,
}

/// Serves until the process is killed. `reply_bytes` is the length of the
/// reply to a check as the load sends it.
pub fn serve(port: u16, workers: usize, reply_bytes: usize) -> anyhow::Result<()> {
    let own_bytes =
        serde_json::to_vec(&reply_to(&serde_json::from_slice(&check_for("u_00000000"))?, ""))?.len();
    let filler = Data::new("x".repeat(reply_bytes.saturating_sub(own_bytes)));
    actix_web::rt::System::new().block_on(async move {
        let app = move || App::new().app_data(filler.clone()).default_service(web::to(echo));
        let server = HttpServer::new(app).workers(workers).tcp_nodelay(true).disable_signals();
        Ok(server.bind(("127.0.0.1", port))?.run().await?)
    })
}

async fn echo(body: Bytes, filler: Data<String>) -> HttpResponse {
    if body.is_empty() {
        return HttpResponse::Ok().finish();
    }
    match serde_json::from_slice::<Request>(&body) {
        Ok(request) => HttpResponse::Ok().json(reply_to(&request, &filler)),
        Err(_) => HttpResponse::BadRequest().finish(),
    }
}

fn reply_to<'a>(request: &'a Request, filler: &'a str) -> Reply<'a> {
    Reply {
        decision: "allow",
        user: &request.user,
        request_id: request.request_id.as_deref(),
        model: request.model.as_deref(),
        feature: request.feature.as_deref(),
        priority: request.priority.as_deref(),
        input_tokens: request.input_tokens,
        max_output_tokens: request.max_output_tokens,
        lease_seconds: request.lease_seconds,
        filler,
    }
}
