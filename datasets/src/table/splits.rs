//! Which parquet file belongs to which configuration and split, by its path.
use crate::options::DataOptions;
use crate::{Error, Result};

/// A parquet file of a data set: `[CONFIG/]SPLIT/0000.parquet`, as on the hub's parquet branch, or
/// `[CONFIG/]SPLIT-00000-of-00001.parquet`, as in data sets uploaded by hand.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shard {
    pub(crate) config: String,
    pub(crate) split: String,
    /// Relative to the data set, with `/`.
    pub(crate) path: String,
}

impl Shard {
    pub(crate) fn of(path: &str) -> Self {
        let path = path.replace('\\', "/");
        let (folders, file) = path.rsplit_once('/').unwrap_or(("", &path));
        let stem = file.split('.').next().unwrap_or(file);
        let numbered = stem.bytes().all(|b| b.is_ascii_digit());
        let (config, split) = if numbered && !folders.is_empty() {
            folders.rsplit_once('/').unwrap_or(("", folders))
        } else {
            (folders, stem.split('-').next().unwrap_or(stem))
        };
        // Of data sets too large to convert whole, the hub keeps the beginning.
        let split = split.strip_prefix("partial-").unwrap_or(split);
        Self { config: config.to_owned(), split: split.to_owned(), path: path.clone() }
    }
}

/// The files to read, in order.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) train: Vec<Shard>,
    pub(crate) test: Vec<Shard>,
}

/// Picks the configuration and the splits that the options ask for or that go by the usual names.
pub(crate) fn choose(at: &str, mut shards: Vec<Shard>, options: &DataOptions) -> Result<Chosen> {
    shards.sort();
    let configs = unique(shards.iter().map(|s| s.config.as_str()));
    let config = match &options.config {
        Some(wanted) => pick(at, "config", wanted, &configs)?,
        None => match configs.as_slice() {
            [only] => only.clone(),
            several if several.iter().any(|c| c == "default") => "default".to_owned(),
            several => {
                return Err(Error::format(
                    at,
                    format!("has several configurations: {}", several.join(", ")),
                    "choose one by `DataOptions::config`",
                ));
            }
        },
    };
    shards.retain(|shard| shard.config == config);
    let splits = unique(shards.iter().map(|s| s.split.as_str()));
    let train = match &options.train_split {
        Some(wanted) => pick(at, "split", wanted, &splits)?,
        None => match splits.as_slice() {
            [only] => only.clone(),
            several if several.iter().any(|s| s == "train") => "train".to_owned(),
            several => {
                return Err(Error::format(
                    at,
                    format!("has splits {}, none called train", several.join(", ")),
                    "choose one by `DataOptions::train_split`",
                ));
            }
        },
    };
    let test = match &options.test_split {
        Some(wanted) => Some(pick(at, "split", wanted, &splits)?),
        None => ["test", "validation", "valid", "val", "dev"]
            .into_iter()
            .find(|name| *name != train && splits.iter().any(|s| s == name))
            .map(str::to_owned),
    };
    let of = |name: &str| {
        let shards = shards.iter().filter(|shard| shard.split == name);
        shards.cloned().collect()
    };
    Ok(Chosen { test: test.as_deref().map(of).unwrap_or_default(), train: of(&train) })
}

fn unique<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn pick(at: &str, kind: &'static str, wanted: &str, there: &[String]) -> Result<String> {
    match there.iter().any(|name| name == wanted) {
        true => Ok(wanted.to_owned()),
        false => Err(Error::missing(at, kind, wanted, there)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(config: &str, split: &str, path: &str) -> Shard {
        Shard { config: config.to_owned(), split: split.to_owned(), path: path.to_owned() }
    }

    #[test]
    fn paths_name_configuration_and_split() {
        for (path, config, split) in [
            ("mnist/train/0000.parquet", "mnist", "train"),
            ("default/partial-train/0012.parquet", "default", "train"),
            ("test/0000.parquet", "", "test"),
            ("data/train-00000-of-00002.parquet", "data", "train"),
            ("train-00000-of-00001.parquet", "", "train"),
            ("rows.parquet", "", "rows"),
            ("0000.parquet", "", "0000"),
            ("a/b/test/0001.parquet", "a/b", "test"),
        ] {
            assert_eq!(Shard::of(path), shard(config, split, path), "{path}");
        }
    }

    #[test]
    fn usual_names_are_chosen_and_shards_are_in_order() -> Result<()> {
        let shards = |paths: &[&str]| paths.iter().map(|p| Shard::of(p)).collect::<Vec<_>>();
        let all = [
            "default/train/0001.parquet",
            "other/train/0000.parquet",
            "default/validation/0000.parquet",
            "default/train/0000.parquet",
        ];
        let chosen = choose("x", shards(&all), &DataOptions::default())?;
        assert_eq!(chosen.train, shards(&[all[3], all[0]]));
        assert_eq!(chosen.test, shards(&[all[2]]));
        let options = DataOptions { config: Some("other".to_owned()), ..DataOptions::default() };
        let chosen = choose("x", shards(&all), &options)?;
        assert_eq!(chosen.train, shards(&[all[1]]));
        assert_eq!(chosen.test, []);
        Ok(())
    }
}
