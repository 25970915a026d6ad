//! One name, one meaning: what all programs say of their options.
use clap::{Arg, Command};
use std::collections::BTreeMap;

/// How far the declarations of an option may differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Differ {
    /// In the default, and in what its help says after the first sentence.
    Details,
    /// In the values as well.
    Values,
    /// In all.
    Meaning,
}
use Differ::{Details, Meaning, Values};

/// Options whose declarations differ, and why they must.
const EXCEPT: [(&[&str], Differ, &str); 10] = [
    (
        &[
            "atoms",
            "epochs",
            "exaggeration",
            "group",
            "iterations",
            "momentum",
            "patches",
            "persistent",
            "weight-decay",
        ],
        Details,
        "models learn best by numbers of their own, and a step of each does more or less of them",
    ),
    (
        &[
            "affinity",
            "degrees-of-freedom",
            "error",
            "metric",
            "n",
            "neighbours",
            "nonzero",
            "seed",
            "sigma",
            "step",
        ],
        Details,
        "a command that uses a model takes those of its training, one that trains has to choose",
    ),
    (
        &["patience", "tolerance"],
        Details,
        "fine-tuning can also watch held-out rows, and keeps the best weights then",
    ),
    (
        &["forgetting", "loss", "penalty", "sparsity-target", "sparsity-weight", "sweeps"],
        Details,
        "the same number in the terms of each cost",
    ),
    (&["rule"], Details, "a model has one that suits it, images have ak-svd"),
    (
        &["basis", "chunk-bytes", "dump", "layers", "max-rows", "peer", "skip-measures", "active"],
        Details,
        "a benchmark says what it does with them",
    ),
    (
        &["data", "image", "precision", "size"],
        Values,
        "a benchmark takes several of them, and rows that it makes",
    ),
    (
        &["batch", "corruption", "hidden", "k", "labelled", "learning-rate", "perplexity", "solver"],
        Values,
        "one number, or several",
    ),
    (
        &["divide", "hidden-unit", "only", "optimizer", "patch", "pursuit", "split", "start", "start-from"],
        Values,
        "the words for the same choice that a model, or a command on images, knows",
    ),
    (
        &["kind", "out", "rows"],
        Meaning,
        "a model, or what is timed; a run, a file, a picture or a folder; rows that are kept, or made",
    ),
];

/// What a command says of an option.
struct Said {
    command: String,
    meaning: String,
    details: String,
    values: String,
}

impl Said {
    fn of(command: &str, arg: &Arg) -> Self {
        let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let end =
            help.find(['.', ';']).filter(|&end| help[end + 1..].starts_with([' '])).unwrap_or(help.len());
        let (meaning, rest) = help.split_at(end);
        let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let possible: Vec<_> =
            arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        Self {
            command: command.to_owned(),
            meaning: meaning.trim_end_matches('.').to_owned(),
            details: format!("{rest} [{}]", defaults.join(",")),
            values: format!(
                "{:?} {:?} {:?} {:?} {:?} {possible:?}",
                arg.get_action(),
                arg.get_value_names().unwrap_or_default(),
                arg.get_num_args(),
                arg.get_value_delimiter(),
                arg.get_value_parser().type_id(),
            ),
        }
    }

    /// The most that this and another differ in.
    fn differs(&self, other: &Self) -> Option<Differ> {
        match () {
            () if self.meaning != other.meaning => Some(Meaning),
            () if self.values != other.values => Some(Values),
            () if self.details != other.details => Some(Details),
            () => None,
        }
    }
}

fn collect(said: &mut BTreeMap<String, Vec<Said>>, path: &str, command: &Command) {
    for arg in command.get_arguments() {
        if let Some(long) = arg.get_long().filter(|long| !["help", "version"].contains(long)) {
            assert!(arg.get_all_aliases().is_none(), "{path} --{long}: a second name");
            said.entry(long.to_owned()).or_default().push(Said::of(path, arg));
        }
    }
    for sub in command.get_subcommands() {
        collect(said, &format!("{path} {}", sub.get_name()), sub);
    }
}

/// All that is said, by the name of the option.
fn said() -> BTreeMap<String, Vec<Said>> {
    let mut said = BTreeMap::new();
    for command in crate::common::programs() {
        let name = command.get_name().to_owned();
        collect(&mut said, &name, &command);
    }
    said
}

#[test]
fn an_option_means_the_same_in_every_command_of_every_program() {
    let said = said();
    let mut faults = Vec::new();
    for (name, all) in &said {
        let first = &all[0];
        let other = all.iter().filter_map(|other| Some((first.differs(other)?, other))).max_by_key(|of| of.0);
        let allowed = EXCEPT.iter().find(|(names, ..)| names.contains(&name.as_str())).map(|except| except.1);
        match (other, allowed) {
            (Some((differs, other)), allowed) if allowed.is_none_or(|allowed| differs > allowed) => {
                let say = |of: &Said| {
                    let Said { command, meaning, details, values } = of;
                    format!("  {command}: {meaning} | {details} | {values}")
                };
                faults.push(format!("--{name} differs in {differs:?}:\n{}\n{}", say(first), say(other)));
            }
            (differs, Some(allowed)) if differs.is_none_or(|(differs, _)| differs < allowed) => {
                faults.push(format!("--{name}: differs less than its exception allows, {allowed:?}"));
            }
            _ => {}
        }
    }
    let names = EXCEPT.iter().flat_map(|(names, ..)| *names);
    faults.extend(
        names.filter(|name| !said.contains_key(**name)).map(|name| format!("--{name}: no such option")),
    );
    assert!(faults.is_empty(), "{} of {} options:\n{}", faults.len(), said.len(), faults.join("\n"));
}

#[test]
fn options_that_were_renamed_are_gone() {
    let said = said();
    for name in [
        "l2",
        "sparsity",
        "sparsity-cost",
        "beta",
        "remove-mean",
        "double",
        "chunk",
        "signed",
        "first",
        "embedding",
        "init",
        "labels",
    ] {
        assert!(!said.contains_key(name), "--{name}");
    }
}
