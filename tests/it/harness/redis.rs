//! Private Redis servers: one, one with a replica and Sentinel, a cluster.
//!
//! Each kind has a `shared()` for tests that only have keys of their own, and a
//! `start()` for those that kill, freeze or empty it. Both give `None` where
//! there is no redis-server; the test is then told as skipped.

use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use redis::FromRedisValue;
use tempfile::TempDir;

use super::lasting::{self, found_or_skipped, free_port};
use super::server::scratch;

/// How long a server may take to come up on a crowded machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// One Redis process, on a port and in a directory that stay its own.
pub struct Node {
    pub port: u16,
    dir: TempDir,
    arguments: Vec<String>,
    child: Mutex<Child>,
}

impl Node {
    /// `settings` as on redis-server's command line: `["--appendonly", "yes"]`.
    fn start(settings: &[&str]) -> Self {
        let dir = scratch();
        // The port may be taken between the look and the start.
        for _ in 0..10 {
            let port = free_port();
            let arguments = arguments(port, &dir, settings);
            let mut child = spawn(&arguments);
            if answers(port, &mut child) {
                return Self { port, dir, arguments, child: Mutex::new(child) };
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        panic!("redis-server {settings:?} does not start");
    }

    /// Where its files are.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Runs a command, over a connection of its own.
    pub fn run<T: FromRedisValue>(&self, command: &[&str]) -> T {
        self.try_run(command).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    pub fn try_run<T: FromRedisValue>(&self, command: &[&str]) -> redis::RedisResult<T> {
        run(self.port, command)
    }

    /// A line of `INFO`, such as `connected_clients`.
    pub fn info(&self, name: &str) -> String {
        let text: String = self.run(&["INFO"]);
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("INFO has {name}")).to_owned()
    }

    /// What has these bytes in its name or its value: the name, the value as
    /// `DUMP` gives it, and in how many ms it ends by itself (-1: never).
    pub fn keys_with(&self, needle: &str) -> Vec<(String, Vec<u8>, i64)> {
        // Small values would be compressed in a dump.
        self.run::<()>(&["CONFIG", "SET", "rdbcompression", "no"]);
        let has = |bytes: &[u8]| bytes.windows(needle.len()).any(|part| part == needle.as_bytes());
        let keys: Vec<String> = self.run(&["KEYS", "*"]);
        let looked_at = keys.into_iter().filter_map(|key| {
            let value: Option<Vec<u8>> = self.run(&["DUMP", &key]);
            let (value, ends) = (value?, self.run(&["PTTL", &key]));
            (has(key.as_bytes()) || has(&value)).then_some((key, value, ends))
        });
        looked_at.collect()
    }

    /// SIGKILL, and nothing else.
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        child.kill().expect("it was started");
        child.wait().expect("it ends");
    }

    /// Starts it again after [`kill`](Self::kill), with what it has on disk.
    pub fn restart(&self) {
        let mut child = self.child.lock().unwrap();
        *child = spawn(&self.arguments);
        assert!(answers(self.port, &mut child), "redis-server comes back");
    }

    /// It stands still, with its connections open.
    pub fn freeze(&self) {
        lasting::freeze(self.child.lock().unwrap().id());
    }

    pub fn thaw(&self) {
        lasting::signal(self.child.lock().unwrap().id(), "CONT");
    }

    pub fn flush_all(&self) {
        self.run::<()>(&["FLUSHALL"]);
    }

    pub fn script_flush(&self) {
        self.run::<()>(&["SCRIPT", "FLUSH", "SYNC"]);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let mut child = self.child.lock().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn arguments(port: u16, dir: &TempDir, settings: &[&str]) -> Vec<String> {
    let dir = dir.path().display().to_string();
    let port = port.to_string();
    let usual = ["--port", &port, "--dir", &dir, "--bind", "127.0.0.1", "--logfile", "log", "--save", ""];
    let own = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    if settings == ["--sentinel"] {
        // Sentinel wants a file to write to, and knows nothing of `save`.
        let file = format!("{dir}/sentinel.conf");
        std::fs::write(&file, "").expect("room for a file");
        return [own(&[&file, "--sentinel"]), own(&usual[..8])].concat();
    }
    [own(&usual), own(settings)].concat()
}

fn spawn(arguments: &[String]) -> Child {
    let mut command = Command::new("redis-server");
    command.args(arguments);
    lasting::spawn(command).expect("redis-server starts")
}

/// Waits until it is this process that answers on the port; `false` if it ended.
fn answers(port: u16, child: &mut Child) -> bool {
    let own = format!("process_id:{}\r", child.id());
    let from = Instant::now();
    while from.elapsed() < PATIENCE && child.try_wait().expect("a child").is_none() {
        // Loading, it answers INFO too.
        let info = run::<String>(port, &["INFO", "server"]).unwrap_or_default();
        let ready = run::<String>(port, &["PING"]).is_ok();
        if ready && info.lines().any(|line| format!("{line}\r") == own) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

fn run<T: FromRedisValue>(port: u16, command: &[&str]) -> redis::RedisResult<T> {
    let client = redis::Client::open(("127.0.0.1", port))?;
    let mut connection = client.get_connection_with_timeout(Duration::from_secs(5))?;
    connection.set_read_timeout(Some(PATIENCE))?;
    let mut call = redis::cmd(command[0]);
    for part in &command[1..] {
        call.arg(*part);
    }
    call.query(&mut connection)
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let from = Instant::now();
    while !holds() {
        assert!(from.elapsed() < PATIENCE, "waited for {what} in vain");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A single server.
pub struct Single;

impl Single {
    pub fn shared() -> Option<&'static Node> {
        static SHARED: OnceLock<Node> = OnceLock::new();
        found_or_skipped("redis-server").then(|| SHARED.get_or_init(|| Node::start(&[])))
    }

    /// One of one's own, with settings as on redis-server's command line.
    pub fn start(settings: &[&str]) -> Option<Node> {
        found_or_skipped("redis-server").then(|| Node::start(settings))
    }
}

/// A primary, its replica, and Sentinels that watch them under the name `main`.
pub struct Watched {
    pub primary: Node,
    pub replica: Node,
    pub sentinels: Vec<Node>,
}

impl Watched {
    pub fn start(sentinels: usize) -> Option<Self> {
        if !found_or_skipped("redis-server") {
            return None;
        }
        let primary = Node::start(&[]);
        let port = primary.port.to_string();
        let replica = Node::start(&["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"]);
        let quorum = (sentinels / 2 + 1).to_string();
        let watch = || {
            let node = Node::start(&["--sentinel"]);
            node.run::<()>(&["SENTINEL", "MONITOR", "main", "127.0.0.1", &port, &quorum]);
            for (name, value) in [("down-after-milliseconds", "500"), ("failover-timeout", "3000")] {
                node.run::<()>(&["SENTINEL", "SET", "main", name, value]);
            }
            node
        };
        let watched = Self { sentinels: (0..sentinels).map(|_| watch()).collect(), primary, replica };
        watched.wait_until_watched();
        Some(watched)
    }

    pub fn url(&self) -> String {
        let list: Vec<String> = self.sentinels.iter().map(Node::address).collect();
        format!("redis+sentinel://{}/main", list.join(","))
    }

    /// Until the Sentinels know of each other and have a replica to promote.
    pub fn wait_until_watched(&self) {
        let others = (self.sentinels.len() - 1).to_string();
        wait_until("the replica", || self.replica.info("master_link_status") == "up");
        for sentinel in &self.sentinels {
            wait_until("the Sentinels", || {
                let state: Vec<String> = sentinel.run(&["SENTINEL", "MASTER", "main"]);
                let of =
                    |name: &str| state.chunks(2).find(|pair| pair[0] == name).map(|pair| pair[1].clone());
                of("num-slaves").as_deref() == Some("1") && of("num-other-sentinels") == Some(others.clone())
            });
        }
    }

    /// Until the replica has everything that was written up to now. (`WAIT` tells of what its own
    /// connection wrote.)
    pub fn wait_until_replicated(&self) {
        let offset = |node: &Node, name| node.info(name).parse::<u64>().expect("an offset is a number");
        let written = offset(&self.primary, "master_repl_offset");
        wait_until("the replica", || offset(&self.replica, "slave_repl_offset") >= written);
    }

    /// From now on nothing reaches the replica any more: it is not let in.
    pub fn cut_replica_off(&self) {
        // Sentinels do not promote who was cut off for ten times as long before.
        for sentinel in &self.sentinels {
            sentinel.run::<()>(&["SENTINEL", "SET", "main", "down-after-milliseconds", "3000"]);
        }
        self.replica.run::<()>(&["CONFIG", "SET", "masterauth", "wrong"]);
        self.primary.run::<i64>(&["CLIENT", "KILL", "TYPE", "replica"]);
        wait_until("the link's end", || self.replica.info("master_link_status") == "down");
    }

    /// Until the Sentinels name the replica as the primary.
    pub fn wait_until_promoted(&self) {
        for sentinel in &self.sentinels {
            wait_until("the promotion", || {
                let (_, port): (String, u16) = sentinel.run(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]);
                port == self.replica.port
            });
        }
    }
}

/// Three primaries that have a third of the slots each.
pub struct Cluster {
    pub nodes: Vec<Node>,
}

impl Cluster {
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        found_or_skipped("redis-server").then(|| SHARED.get_or_init(Self::build))
    }

    pub fn start() -> Option<Self> {
        found_or_skipped("redis-server").then(Self::build)
    }

    fn build() -> Self {
        let nodes: Vec<Node> = (0..3).map(|_| cluster_node()).collect();
        for ((node, epoch), (first, last)) in
            nodes.iter().zip(1..).zip([(0, 5460), (5461, 10922), (10923, 16383)])
        {
            node.run::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch.to_string()]);
            node.run::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
        }
        for node in &nodes[1..] {
            nodes[0].run::<()>(&["CLUSTER", "MEET", "127.0.0.1", &node.port.to_string(), &bus(node)]);
        }
        let cluster = Self { nodes };
        cluster.wait_until_whole();
        cluster
    }

    pub fn url(&self) -> String {
        let list: Vec<String> = self.nodes.iter().map(Node::address).collect();
        format!("redis+cluster://{}", list.join(","))
    }

    /// Until every node says that all slots are served.
    pub fn wait_until_whole(&self) {
        let says = |node: &Node, line: &str| node.run::<String>(&["CLUSTER", "INFO"]).contains(line);
        for node in &self.nodes {
            wait_until("the cluster", || {
                says(node, "cluster_state:ok")
                    && says(node, "cluster_known_nodes:3")
                    && says(node, "cluster_slots_ok:16384")
            });
        }
    }

    /// A replica of one of them, in step with it and known to all.
    pub fn add_replica_of(&self, primary: &Node) -> Node {
        let replica = cluster_node();
        let (port, bus) = (primary.port.to_string(), bus(primary));
        replica.run::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        wait_until("the primary is known", || {
            replica.try_run::<()>(&["CLUSTER", "REPLICATE", &id(primary)]).is_ok()
        });
        wait_until("the replica", || replica.info("master_link_status") == "up");
        let own = id(&replica);
        for node in &self.nodes {
            wait_until("all know the replica", || {
                let nodes: String = node.run(&["CLUSTER", "NODES"]);
                nodes.lines().any(|line| line.starts_with(&own) && line.contains("slave"))
            });
        }
        replica
    }

    /// Until a replica has taken the place of its primary.
    pub fn wait_until_promoted(&self, replica: &Node) {
        wait_until("the promotion", || {
            replica.info("role") == "master"
                && replica.run::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
        });
    }

    /// The node that has a slot, by its own word.
    pub fn owner_of(&self, slot: u16) -> &Node {
        let has = |node: &&Node| {
            let nodes: String = node.run(&["CLUSTER", "NODES"]);
            let own = nodes.lines().find(|line| line.contains("myself")).expect("a line of its own");
            own.split(' ').skip(8).filter(|range| !range.starts_with('[')).any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                (first.parse::<u16>().unwrap()..=last.parse().unwrap()).contains(&slot)
            })
        };
        self.nodes.iter().find(has).expect("every slot is served")
    }

    /// Begins to move a slot: keys that are not (any more) at the old node are
    /// asked for at the new one.
    pub fn begin_move(&self, slot: u16, to: &Node) {
        let from = self.owner_of(slot);
        let slot = slot.to_string();
        to.run::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
        from.run::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
    }

    /// Moves the keys of a slot whose move has begun.
    pub fn move_keys(&self, slot: u16, to: &Node) {
        let from = self.owner_of(slot);
        loop {
            let keys: Vec<String> = from.run(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "100"]);
            if keys.is_empty() {
                return;
            }
            for key in keys {
                from.run::<()>(&["MIGRATE", "127.0.0.1", &to.port.to_string(), &key, "0", "5000"]);
            }
        }
    }

    /// The slot belongs to the new node from now on.
    pub fn end_move(&self, slot: u16, to: &Node) {
        let from = self.owner_of(slot);
        for node in [to, from] {
            node.run::<()>(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &id(to)]);
        }
    }
}

fn cluster_node() -> Node {
    let bus = free_port().to_string();
    Node::start(&["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-port", &bus])
}

/// The port by which nodes speak with each other.
fn bus(node: &Node) -> String {
    let port: Vec<String> = node.run(&["CONFIG", "GET", "cluster-port"]);
    port[1].clone()
}

fn id(node: &Node) -> String {
    node.run(&["CLUSTER", "MYID"])
}
