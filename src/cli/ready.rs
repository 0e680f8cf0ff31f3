//! `apportion ready`: asks the server of this configuration whether it can decide. For
//! health checks where no other program is installed, as in a container.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;

use super::{Common, say};

/// How long it may take to connect, and then to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// What is read of an answer.
const ANSWER_MAX: u64 = 4096;

pub fn run(common: &Common) -> anyhow::Result<ExitCode> {
    let address = reached_at(common.load(None)?.listen);
    let answer = ask(address).with_context(|| format!("no server answers at {address}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    say(body.trim_end())?;
    let is_ready = head.split(' ').nth(1) == Some("200");
    Ok(if is_ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Who listens on all addresses is reached on the loopback one.
fn reached_at(listens: SocketAddr) -> SocketAddr {
    let ip = match listens.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listens.port())
}

fn ask(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(ANSWER_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}
