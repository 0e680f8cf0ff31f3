//! The `apportion` binary; see the library's front page for the floor plan.

/// Checks allocate many short-lived small pieces on two or more threads; the
/// system allocator costs noticeably more there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    apportion::cli::run(std::env::args_os())
}
