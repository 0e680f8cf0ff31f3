//! A private server, and dice.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

pub struct Server(pub Child, u16);

impl Server {
    pub fn start() -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
        let settings =
            ["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--logfile", "/dev/null"];
        let mut command = Command::new("redis-server");
        let child =
            command.args(settings).current_dir(std::env::temp_dir()).stdout(Stdio::null()).spawn().ok()?;
        Some(Self(child, port))
    }

    pub fn connect(&self) -> redis::Connection {
        let client = redis::Client::open(("127.0.0.1", self.1)).expect("an address");
        for _ in 0..1000 {
            if let Ok(connection) = client.get_connection() {
                return connection;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("redis-server does not answer");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Splitmix64: the same lives for the same seed.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.roll() % bound
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
}
