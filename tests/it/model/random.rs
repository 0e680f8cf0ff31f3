//! Random command sequences, each reply compared with the model's.
//!
//! `ORACLE_COMMANDS` sets how many commands are run in all (default 12,000), `ORACLE_SEED` runs
//! one seed alone, or so many commands from it on; `ORACLE_KILLS=1` kills the service every few dozen commands, `ORACLE_FAMILIES`
//! narrows the changes that are made (see `family`), and `ORACLE_PROBE` looks at every user's
//! figures after each command, which shows where a difference began. A difference prints the seed and the commands that led to it.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::generate::{Command, Script};
use super::rng::Rng;
use super::stage::Stage;
use super::world::World;
use crate::harness::number_from_env;

/// Commands of one seed: long enough to reach month ends, short enough to be read.
const COMMANDS_A_SEED: usize = 500;
/// Commands that were run: some seeds end early, where the contract leaves something open.
static RUN: AtomicUsize = AtomicUsize::new(0);
/// Seeds run at once.
const LANES: usize = 4;

/// Commands of the short run in which the service is killed again and again.
const COMMANDS_WITH_KILLS: usize = 1000;

#[test]
fn every_reply_to_random_commands_is_the_one_that_the_model_predicts() {
    let first = number_from_env("ORACLE_SEED", 1);
    let usual = if std::env::var_os("ORACLE_SEED").is_some() { 1 } else { 12_000 };
    let seeds = number_from_env("ORACLE_COMMANDS", usual).div_ceil(COMMANDS_A_SEED);
    play_all(
        (first..first + seeds).map(|seed| seed as u64).collect(),
        std::env::var_os("ORACLE_KILLS").is_some(),
    );
}

#[test]
fn a_service_that_is_killed_between_commands_goes_on_as_the_model_predicts() {
    let many = COMMANDS_WITH_KILLS.div_ceil(COMMANDS_A_SEED) as u64;
    play_all((2001..=2000 + many).collect(), true);
}

fn play_all(seeds: Vec<u64>, kills: bool) {
    println!("seeds {}..={}, {COMMANDS_A_SEED} commands each", seeds[0], seeds[seeds.len() - 1]);
    let lanes: Vec<_> = (0..LANES)
        .map(|lane| {
            let mine: Vec<u64> = seeds.iter().copied().skip(lane).step_by(LANES).collect();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                mine.into_iter()
                    .filter_map(|seed| runtime.block_on(play(seed, kills)).err())
                    .collect::<Vec<String>>()
            })
        })
        .collect();
    let failures: Vec<String> =
        lanes.into_iter().flat_map(|lane| lane.join().expect("a lane ends")).collect();
    println!("{} commands were run", RUN.load(Ordering::Relaxed));
    if let Some(first) = failures.first() {
        for failure in &failures {
            println!("{}", brief(failure));
        }
        panic!("{} of {} seeds differ; the first:\n{first}", failures.len(), seeds.len());
    }
}

async fn play(seed: u64, kills: bool) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    // Kills come from a generator of their own: the commands are the same with and without them.
    let mut fate = Rng::new(!seed);
    let mut next_kill = if kills { fate.between(20, 60) } else { i64::MAX };
    let stage = Stage::draw(&mut rng);
    let mut world = World::set(&stage, kills).await;
    let mut script = Script::new(rng, stage);
    let probing = std::env::var_os("ORACLE_PROBE").is_some();
    for step in 0..COMMANDS_A_SEED {
        RUN.fetch_add(1, Ordering::Relaxed);
        let command = script.next(&world.oracle);
        let result = world.run(&command).await;
        if world.oracle.is_blurred() {
            return Ok(());
        }
        let result = match result {
            Ok(()) if probing => world.probe().await,
            result => result,
        };
        result.map_err(|difference| report(seed, step, &world, &difference))?;
        remember_wait(&mut script, &world, &command);
        if step as i64 >= next_kill {
            world.kill();
            next_kill += fate.between(20, 60);
        }
    }
    world.all_quotas().await.map_err(|difference| report(seed, COMMANDS_A_SEED, &world, &difference))
}

/// A check that was told to wait is asked again when the wait is over.
fn remember_wait(script: &mut Script, world: &World, command: &Command) {
    let Command::Check { body, key: None } = command else { return };
    if let Some(wait) = world.last_wait() {
        script.refused = Some((world.oracle.now + wait, body.clone()));
    }
}

/// The seed, the last command and the first difference.
fn brief(failure: &str) -> String {
    let story = failure.split("\n--- ").next().unwrap_or(failure);
    let lines: Vec<&str> = story.lines().collect();
    let differences = lines.iter().rposition(|l| l.contains(" -> ")).unwrap_or(0);
    let seed = lines[0].split(" (").next().unwrap_or("");
    format!("{seed}: {}", lines[differences..].iter().take(3).copied().collect::<Vec<_>>().join("\n    "))
}

fn report(seed: u64, step: usize, world: &World, difference: &str) -> String {
    let mut text = format!("seed {seed}, command {step} (ORACLE_SEED={seed} runs it alone)\n");
    for line in &world.history {
        let _ = writeln!(text, "{line}");
    }
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("oracle-seed-{seed}.txt"));
    // The whole story is kept in a file; the message holds its end.
    let _ = std::fs::write(&path, format!("{text}{difference}\n"));
    let tail = world.history.len().saturating_sub(25);
    format!(
        "seed {seed}, command {step} (ORACLE_SEED={seed} runs it alone; all commands in {})\n{}\n{difference}",
        path.display(),
        world.history[tail..].join("\n")
    )
}
