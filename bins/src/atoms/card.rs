//! What the model cards of all dictionaries say.
use super::draw;
use crate::session::{Card, Picture};
use chandlery::dictionary::DictionaryConfig;
use chandlery_datasets::count;

const TAGS: [&str; 3] = ["dictionary-learning", "sparse-coding", "unsupervised"];

/// The picture of `n` atoms.
pub fn picture(n: usize) -> Picture {
    Picture { file: "dictionary.png".to_owned(), caption: draw::caption(n) }
}

/// What the cards of all dictionaries say.
pub fn dictionary<'a>(config: &DictionaryConfig, scale: &str, pictures: &'a [Picture]) -> Card<'a> {
    Card {
        tags: &TAGS,
        title: format!(
            "Dictionary of {}, {} each",
            count(config.n_atoms, "atom"),
            count(config.n_features, "value")
        ),
        pictures,
        rust: format!(
            "use chandlery::{{Decode, Encode, Model}};\n\
             let dictionary = chandlery::dictionary::Dictionary::from_pretrained(\"this/folder\", &chandlery::LoadOptions::default())?;\n\
             let codes = dictionary.encode(&rows)?; // rows: [m, {}], {scale}\nlet back = dictionary.decode(&codes)?; // as signals",
            config.n_inputs()
        ),
        files: "`model.safetensors` holds `dictionary`, `[n_atoms, n_features]`, rows of norm 1.".to_owned(),
        ..Card::default()
    }
}
