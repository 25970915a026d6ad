//! Messages of the library without its names of types and functions, which users of programs do not
//! know.
//!
//! An error of the library says where it is from: `TsneTrainer: layout must have shape [40, 2]`,
//! `Rbm::exact_log_z: there are 2^30 states`. What the user can act upon comes after. Where it
//! names a field of `DataOptions`, the user has an option.

/// Options of programs for fields of `DataOptions`.
pub const OPTIONS: [(&str, &str); 11] = [
    ("features", "--data-columns"),
    ("labels", "--label-column"),
    ("header", "--header"),
    ("separator", "--separator"),
    ("subset", "--subset"),
    ("config", "--data-config"),
    ("revision", "--revision"),
    ("train_split", "--train-split"),
    ("test_split", "--test-split"),
    ("max_rows", "--max-rows"),
    ("colour", "--colour"),
];

/// The text with options in place of fields.
pub fn with_options(text: &str) -> String {
    let replace = |text: String, (field, option): (&str, &str)| {
        text.replace(&format!("`DataOptions::{field}`"), option)
    };
    OPTIONS.into_iter().fold(text.to_owned(), replace)
}

/// Functions of the library that are called as a word, which nothing else in a message tells from
/// the name of a file.
const WORDS: [&str; 9] = [
    "convolution",
    "init",
    "knn",
    "psnr",
    "softmax",
    "softmax.accuracy",
    "softmax.fit",
    "symmetrize",
    "trustworthiness",
];

/// The text without names of code before it, or between an option or a file and what is said of it;
/// `is_users` says which names are the user's own: of files, folders or arguments.
pub fn plain(text: &str, is_users: impl Fn(&str) -> bool) -> String {
    let (mut said, mut rest) = (String::new(), text);
    while let Some((name, after)) = rest.split_once(": ") {
        if name.contains(' ') && !name.starts_with("--") {
            break;
        }
        if !is_of_code(name) || is_users(name) {
            said = said + name + ": ";
        }
        rest = after;
    }
    with_options(&(said + rest))
}

/// Whether the command line has this name in it, or it is that of something in the current folder.
pub fn is_users(name: &str) -> bool {
    std::env::args_os().any(|arg| arg.to_string_lossy().contains(name)) || std::path::Path::new(name).exists()
}

/// `TsneTrainer`, `Rbm::exact_log_z`, `lasso_`, `update_atoms`.
fn is_of_code(name: &str) -> bool {
    if WORDS.contains(&name) {
        return true;
    }
    let mut parts = name.split("::");
    let are_names = parts.all(|part| {
        let mut letters = part.chars();
        letters.next().is_some_and(|c| c.is_ascii_alphabetic())
            && letters.all(|c| c.is_ascii_alphanumeric() || c == '_')
    });
    let is_type =
        name.starts_with(|c: char| c.is_ascii_uppercase()) && name.contains(|c: char| c.is_ascii_lowercase());
    are_names && (name.contains("::") || name.contains('_') || is_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_code_go_and_names_of_the_user_stay() {
        for (text, want) in [
            ("TsneTrainer: layout must have shape [40, 2]", "layout must have shape [40, 2]"),
            ("Rbm::exact_log_z: there are 2^30 states", "there are 2^30 states"),
            ("OnlineDictionaryTrainer::partial_fit: batch: must be finite", "batch: must be finite"),
            ("lasso_: energies must be finite", "energies must be finite"),
            ("Dictionary: update_atoms: group must be 1", "group must be 1"),
            ("softmax.fit: labels must be below 3", "labels must be below 3"),
            ("--start-from x.npy: TsneTrainer: layout must be x", "--start-from x.npy: layout must be x"),
            ("up-down: LabelledDbnTrainer: the weights are 0", "up-down: the weights are 0"),
            // Options, files, words and sentences.
            ("the layout of TsneTrainer: x", "the layout of TsneTrainer: x"),
            ("--data x: no such file", "--data x: no such file"),
            ("x.csv: two; choose by `DataOptions::train_split`", "x.csv: two; choose by --train-split"),
            ("x.npy: cannot be read", "x.npy: cannot be read"),
            ("runs/a: no such folder", "runs/a: no such folder"),
            ("my_run: no such folder", "my_run: no such folder"),
            ("scatter: there must be at least 1 point", "scatter: there must be at least 1 point"),
            ("CUDA: no device", "CUDA: no device"),
            ("No space left on device: x", "No space left on device: x"),
        ] {
            assert_eq!(plain(text, |name| name == "my_run"), want);
        }
    }
}
