//! One file a command.

mod bench;
mod consume;
mod dump;
mod offsets;
pub(crate) mod produce;
mod serve;
pub(crate) mod status;
mod topic;

use clap::CommandFactory;

use crate::args::{Cli, Command};
use crate::connect::with_client;
use crate::demo;
use crate::exit::Failure;
use crate::output::Out;

/// Does what was typed.
pub(crate) fn run(cli: Cli, out: &mut Out) -> Result<(), Failure> {
    match cli.command {
        Command::Topic(command) => with_client(&cli.server, |client| topic::run(client, command, out)),
        Command::Produce(args) => produce::run(&cli.server, args, out),
        Command::Consume(args) => consume::run(&cli.server, args, out),
        Command::Offsets(args) => with_client(&cli.server, |client| offsets::run(client, args, out)),
        Command::Status(args) => with_client(&cli.server, |client| status::run(client, args, out)),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tg", &mut script);
            out.bytes(&script)
        }
        Command::Bench(command) => bench::run(&cli.server, command, out),
        Command::Demo(args) => demo::run(&args, out),
        Command::Dump(args) => dump::run(&args, out),
        Command::Dev(args) => serve::dev(&args, out),
        Command::Serve(args) => serve::serve(&args, out),
    }
}
