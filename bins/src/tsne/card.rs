//! The model card of a run.
use super::args::Settings;
use super::changes::words_of_change;
use super::choices::words_of_affinity;
use super::given::Given;
use super::rows::Rows;
use crate::choices::name_of;
use crate::session::{Card, Picture};
use anyhow::Result;
use chandlery::tsne::Embedding;
use std::fmt::Write;

const TAGS: [&str; 4] = ["t-sne", "dimensionality-reduction", "visualization", "unsupervised"];

/// The card of a layout of `rows`, of a run with these settings, points and iterations; `figures`
/// are names and values.
pub fn of<'a>(
    embedding: &Embedding,
    rows: &Rows,
    (settings, n_points, iterations): (&Settings, usize, usize),
    figures: &[(String, String)],
    pictures: &'a [Picture],
) -> Result<Card<'a>> {
    let (n, n_dims) = embedding.layout().dims2()?;
    let n_inputs = rows.n_inputs();
    let takes_rows = embedding.n_inputs()?.is_some();
    let compared = match embedding.rows() {
        Some(raw) => {
            let name = if raw.dtype() == candle::DType::U8 { "byte_rows" } else { "rows" };
            format!(" and `{name}` `[n, {n_inputs}]`, the raw rows that new ones are compared with")
        }
        None if takes_rows => {
            " and `prepared_rows` `[n, n_features]`, the rows as they were prepared, that new ones are compared with".to_owned()
        }
        None => String::new(),
    };
    let compared_by = match settings.given() {
        Some(Given::Distances(file)) => format!("distances of {}", file.display()),
        _ => format!("{} distance", name_of(&settings.metric)),
    };
    let unique = if settings.unique { ", equal rows as one point" } else { "" };
    let centre = match embedding.config().centre.is_empty() {
        true => "",
        false => ", less `centre` of config.json, subtracted in f64",
    };
    let changes = embedding.config().changes.iter().filter(|change| change.iteration < iterations);
    let changes: String = changes.map(|change| format!("; {}", words_of_change(change))).collect();
    let scale = rows.scale(&embedding.config().preparation)?;
    let new_rows = match takes_rows {
        true => format!("\nlet new = embedding.transform(&rows)?; // rows: [m, {n_inputs}], {scale}{centre}"),
        false => String::new(),
    };
    let mut results = String::from("| figure | value |\n|---|---|\n");
    for (name, value) in figures {
        // Writing to a String cannot fail.
        let _ = writeln!(results, "| {name} | {value} |");
    }
    results.push_str("\n![divergence by iteration](curves.svg)");
    Ok(Card {
        tags: &TAGS,
        title: format!("t-SNE of {} in {n_dims} dimensions", rows.name),
        learned: format!(
            "A layout of `{}`, {}: near rows are near. Distances between clusters, and their sizes, say little about the rows.",
            rows.name,
            rows.words()
        ),
        settings: format!(
            "{}, {compared_by}{unique}, {iterations} iterations, early exaggeration {}{changes}",
            words_of_affinity(embedding.config(), n_points),
            settings.descent.early_exaggeration
        ),
        results,
        pictures,
        rust: format!(
            "use chandlery::Model;\n\
             let embedding = chandlery::tsne::Embedding::from_pretrained(\"this/folder\", &chandlery::LoadOptions::default())?;\n\
             let points = embedding.layout(); // [{n}, {n_dims}]{new_rows}"
        ),
        files: format!(
            "`model.safetensors` holds `layout` `[n, {n_dims}]`{compared}. \
                `layout.npy`, `layout.csv` (with labels) and `layout.safetensors` hold the layout alone; `page.html` shows it in a browser, \
                without a network."
        ),
    })
}
