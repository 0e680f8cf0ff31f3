//! A TCP proxy before Redis or Postgres that loses, delays and cuts.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Listens until the test binary ends.
pub struct Proxy {
    pub address: String,
    faults: Arc<Faults>,
}

struct Faults {
    target: String,
    /// Lose the reply of every n-th request; 0 of none.
    lose_every: AtomicUsize,
    /// Requests that count are those with these bytes in them.
    counted: Mutex<Vec<u8>>,
    count: AtomicUsize,
    lost: AtomicUsize,
    delay_ms: AtomicU64,
    refuses: AtomicBool,
    accepted: AtomicUsize,
    open: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// Before a server at `target`, an address with a port.
    pub fn before(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port for a proxy");
        let address = listener.local_addr().expect("it listens").to_string();
        let faults = Arc::new(Faults {
            target: target.to_owned(),
            lose_every: AtomicUsize::new(0),
            counted: Mutex::default(),
            count: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
            delay_ms: AtomicU64::new(0),
            refuses: AtomicBool::new(false),
            accepted: AtomicUsize::new(0),
            open: Mutex::default(),
        });
        let own = faults.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                own.clone().serve(client);
            }
        });
        Self { address, faults }
    }

    /// Cuts the connection of every `n`-th request that has `bytes` in it
    /// (`EVALSHA`, `COMMIT`) when its reply comes: it was carried out, and
    /// nobody hears of it. 0: no more of that.
    pub fn lose_replies(&self, n: usize, bytes: &[u8]) {
        *self.faults.counted.lock().unwrap() = bytes.to_vec();
        self.faults.lose_every.store(n, SeqCst);
    }

    /// How many replies were lost by [`lose_replies`](Self::lose_replies).
    pub fn lost(&self) -> usize {
        self.faults.lost.load(SeqCst)
    }

    /// How many connections were let in.
    pub fn accepted(&self) -> usize {
        self.faults.accepted.load(SeqCst)
    }

    /// Holds back each request so long.
    pub fn delay(&self, by: Duration) {
        self.faults.delay_ms.store(by.as_millis() as u64, SeqCst);
    }

    /// Cuts every connection there is.
    pub fn cut(&self) {
        for stream in self.faults.open.lock().unwrap().drain(..) {
            // It may be gone already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Closes new connections as soon as they come, or lets them in again.
    pub fn refuse(&self, refuses: bool) {
        self.faults.refuses.store(refuses, SeqCst);
    }
}

impl Faults {
    fn serve(self: Arc<Self>, client: TcpStream) {
        if self.refuses.load(SeqCst) {
            return;
        }
        let Ok(server) = TcpStream::connect(&self.target) else { return };
        self.accepted.fetch_add(1, SeqCst);
        let copy = |stream: &TcpStream| stream.try_clone().expect("a handle");
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("a TCP stream");
        }
        self.open.lock().unwrap().extend([copy(&client), copy(&server)]);
        let lose = Arc::new(AtomicBool::new(false));
        let (client_too, server_too) = (copy(&client), copy(&server));
        let (own, lose_too) = (self.clone(), lose.clone());
        std::thread::spawn(move || own.requests(client_too, server_too, &lose_too));
        std::thread::spawn(move || self.replies(server, client, &lose));
    }

    fn requests(&self, mut client: TcpStream, mut server: TcpStream, lose: &AtomicBool) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = client.read(&mut buffer) {
            let request = &buffer[..read];
            std::thread::sleep(Duration::from_millis(self.delay_ms.load(SeqCst)));
            if self.is_to_lose(request) {
                lose.store(true, SeqCst);
            }
            if server.write_all(request).is_err() {
                break;
            }
        }
        // Its end only: what it was asked before, it shall do.
        let _ = server.shutdown(Shutdown::Write);
    }

    fn is_to_lose(&self, request: &[u8]) -> bool {
        let every = self.lose_every.load(SeqCst);
        let counted = self.counted.lock().unwrap();
        if every == 0 || !(counted.is_empty() || request.windows(counted.len()).any(|part| part == *counted))
        {
            return false;
        }
        (self.count.fetch_add(1, SeqCst) + 1).is_multiple_of(every)
    }

    fn replies(&self, mut server: TcpStream, mut client: TcpStream, lose: &AtomicBool) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = server.read(&mut buffer) {
            if lose.load(SeqCst) {
                self.lost.fetch_add(1, SeqCst);
                let _ = client.shutdown(Shutdown::Both);
                // To the end, so that the server is not cut off in its work.
                while let Ok(1..) = server.read(&mut buffer) {}
                break;
            }
            if client.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
    }
}
