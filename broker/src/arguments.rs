//! The command line of `tidegate serve`, made from the list of keys.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, value_parser};

use crate::config::{KEYS, Key, Kind, RawConfig};

/// The command line.
pub fn command() -> Command {
    let config = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("A TOML file with any of the keys below; the command line wins over it");
    let serve = Command::new("serve").about("Serves a data directory until SIGTERM or ctrl-C").arg(config);
    let serve = KEYS.iter().fold(serve, |serve, key| serve.arg(argument(key)));
    Command::new("tidegate")
        .version(env!("CARGO_PKG_VERSION"))
        .about("A log broker: durable topics, credit on both sides, one flush a cycle")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(serve)
}

fn argument(key: &Key) -> Arg {
    let default = if key.default.is_empty() { String::new() } else { format!(" [default: {}]", key.default) };
    let argument = Arg::new(key.name).long(key.name.replace('_', "-")).help(format!("{}{default}", key.doc));
    match key.kind {
        // `--insecure` alone is a yes.
        Kind::Switch => argument
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_name("true|false"),
        Kind::Path => argument.value_name("PATH"),
        Kind::Address => argument.value_name("ADDRESS:PORT"),
        Kind::HostPort => argument.value_name("HOST:PORT"),
        Kind::Number { .. } => argument.value_name("NUMBER").allow_negative_numbers(true),
        Kind::Uuid => argument.value_name("UUID"),
        Kind::Choice(_) => argument.value_name("NAME"),
    }
}

/// Adds what was typed.
pub fn take(raw: RawConfig, matches: &ArgMatches) -> RawConfig {
    KEYS.iter().fold(raw, |raw, key| match matches.get_one::<String>(key.name) {
        Some(value) => raw.with(key.name, value),
        None => raw,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound_and_names_every_key() {
        command().debug_assert();
        let matches = command()
            .try_get_matches_from(["tidegate", "serve", "--insecure", "--listen", "0.0.0.0:0", "--pin=false"])
            .unwrap();
        let raw = take(RawConfig::new(), matches.subcommand_matches("serve").unwrap());
        assert_eq!(raw.check().unwrap().listen.port(), 0);
    }
}
