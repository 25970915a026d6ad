//! Commands of the guides: read by the programs' own command lines, and the files that they name.
use chandlery_bins::programs;
use std::path::Path;

/// Commands of other programs, which are not read.
const OTHERS: [&str; 10] =
    ["bash", "cargo build", "cargo clippy", "cargo install", "cd", "git", "head", "maturin", "pip", "pytest"];

fn is_ours(word: &str) -> bool {
    word == "chandlery" || programs::commands().iter().any(|of| of.get_name() == word)
}

/// Whether code within a line is a whole command of ours, with options and their values.
pub fn is_whole(code: &str) -> bool {
    code.split(' ').next().is_some_and(is_ours) && code.contains(" --") && code.split(' ').count() > 2
}

/// The commands that `bench paper a|b` stands for.
pub fn each(code: &str) -> Vec<String> {
    let Some(words) = code.split(' ').find(|word| word.contains('|')) else { return vec![code.to_owned()] };
    words.split('|').map(|word| code.replacen(words, word, 1)).collect()
}

/// The words of a line for a shell, up to a comment. Quotes are as in a shell; nothing else is.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (vec![], None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (Some(open), c) if open == c => quote = None,
            (None, '#') if word.is_none() => break,
            (None, ' ') => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Reads each command of a line.
pub fn check(root: &Path, line: &str) -> Result<(), String> {
    let words = words(line);
    let commands = words.split(|word| ["|", "&&", ">"].contains(&word.as_str()));
    commands.filter(|command| !command.is_empty()).try_for_each(|command| one(root, command))
}

fn one(root: &Path, command: &[String]) -> Result<(), String> {
    let is_setting = |word: &&String| word.split('=').next().is_some_and(|name| name.to_uppercase() == name);
    let settings = command.iter().take_while(|word| word.contains('=') && is_setting(word)).count();
    let command: Vec<&str> = command[settings..].iter().map(String::as_str).collect();
    match &command[..] {
        ["source", open, inner @ .., last] if open.starts_with("<(") => {
            let inner = [&[&open[2..]], inner, &[last.trim_end_matches(')')]].concat();
            program(&inner)
        }
        ["cargo", "run", rest @ ..] => cargo_run(root, rest),
        ["cargo", "test", rest @ ..] => match option(rest, "--test") {
            Some("main") => option(rest, "main").map_or(Ok(()), |filter| file_of_tests(root, filter)),
            Some(name) => test(root, name),
            None => Ok(()),
        },
        ["python" | "python3", script, ..] => match root.join(script).is_file() {
            true => Ok(()),
            false => Err(format!("no file {script}")),
        },
        [first, ..] if is_ours(first) => program(&command),
        _ => match OTHERS.iter().any(|other| command.join(" ").starts_with(other)) {
            true => Ok(()),
            false => Err("not a command that guides have".to_owned()),
        },
    }
}

/// A program of tests, as the crates declare them.
fn test(root: &Path, name: &str) -> Result<(), String> {
    let section = format!("[[test]]\nname = \"{name}\"\n");
    let declares = |of: &str| {
        std::fs::read_to_string(root.join(of).join("Cargo.toml")).is_ok_and(|text| text.contains(&section))
    };
    match ["custom-ops", "datasets", "models", "bins", "tests"].into_iter().any(declares) {
        true => Ok(()),
        false => Err(format!("no test {name}")),
    }
}

/// A file or folder of the tests that share a program, by the first word of a filter.
fn file_of_tests(root: &Path, filter: &str) -> Result<(), String> {
    let name = filter.split("::").next().unwrap_or(filter);
    let has = |of: &str| {
        let folder = root.join(of).join("tests");
        folder.join(name).is_dir() || folder.join(format!("{name}.rs")).is_file()
    };
    match ["custom-ops", "datasets", "models"].into_iter().any(has) {
        true => Ok(()),
        false => Err(format!("no file of tests {name}")),
    }
}

fn option<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    let at = words.iter().position(|&word| word == name)?;
    words.get(at + 1).copied()
}

fn cargo_run(root: &Path, words: &[&str]) -> Result<(), String> {
    let end = words.iter().position(|&word| word == "--").unwrap_or(words.len());
    let (own, args) = words.split_at(end);
    if let Some(example) = option(own, "--example") {
        let is_there =
            ["models", "bins"].iter().any(|of| root.join(format!("{of}/examples/{example}.rs")).is_file());
        return if is_there { Ok(()) } else { Err(format!("no example {example}")) };
    }
    let bin = option(own, "--bin").ok_or("neither a program nor an example")?;
    program(&[&[bin], args.get(1..).unwrap_or_default()].concat())
}

fn program(words: &[&str]) -> Result<(), String> {
    let mut known = programs::commands().into_iter().chain([programs::whole()]);
    let command =
        known.find(|of| of.get_name() == words[0]).ok_or_else(|| format!("no program {}", words[0]))?;
    match command.try_get_matches_from(words) {
        Err(error) if error.use_stderr() => {
            Err(error.to_string().lines().next().unwrap_or_default().to_owned())
        }
        _ => Ok(()),
    }
}
