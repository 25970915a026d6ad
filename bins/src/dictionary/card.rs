//! The model card of a run.
use super::args::Settings;
use super::signals::Signals;
use crate::atoms::card::dictionary;
use crate::choices::name_of;
use crate::report::figure;
use crate::session::card::scale_of;
use crate::session::{Card, Picture};
use anyhow::Result;
use chandlery::dictionary::DictionaryConfig;
use chandlery::dictionary::measure::Figures;
use chandlery_datasets::count;

/// How well dictionaries represent the signals.
pub struct Measured<'a> {
    /// The first one.
    pub before: &'a Figures,
    /// The one that was learned.
    pub after: &'a Figures,
    pub coherence: f64,
}

/// The card of a dictionary that was learned from `signals`.
pub fn of<'a>(
    config: &DictionaryConfig,
    signals: &Signals,
    settings: &Settings,
    measured: &Measured<'_>,
    pictures: &'a [Picture],
) -> Result<Card<'a>> {
    let how = match settings.online {
        true => format!("online, in minibatches of {}", settings.batch),
        false => format!("by {}", name_of(&settings.rule())),
    };
    let unit = signals.unit();
    let end =
        settings.error.map_or_else(String::new, |rms| format!(", stopping at an error of {rms} {unit}"));
    let Measured { before, after, coherence } = measured;
    let scale = scale_of(&signals.rows.split, &config.preparation)?;
    Ok(Card {
        learned: format!("Learned {how} on `{}`: {}.", signals.rows.name, signals.words()),
        settings: format!(
            "{}{}{}, codes of up to {} by {}{end}",
            count(settings.epochs, "epoch"),
            settings.converge.words(),
            match (settings.nonnegative_atoms, settings.is_nonnegative()) {
                (true, true) => ", atoms and coefficients of at least 0 (a nonnegative matrix factorisation)",
                (true, false) => ", atoms of at least 0",
                (false, true) => ", coefficients of at least 0",
                (false, false) => "",
            },
            count(settings.nonzero, "atom"),
            name_of(&settings.method())
        ),
        results: format!(
            "| on all signals | initial dictionary | this dictionary |\n|---|---|---|\n\
             | root mean square error, {unit} | {} | **{}** |\n\
             | atoms per code | {:.2} | {:.2} |\n\
             | atoms used | {} | {} of {} |\n\
             | largest cosine of two atoms | | {coherence:.3} |\n\n\
             ![root mean square error by epoch](curves.svg)",
            figure(before.rmse, 4),
            figure(after.rmse, 4),
            before.mean_count,
            after.mean_count,
            before.used,
            after.used,
            config.n_atoms
        ),
        ..dictionary(config, &scale, pictures)
    })
}
