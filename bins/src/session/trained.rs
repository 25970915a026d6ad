//! A run whose training is done: its curves, its results and its card.
use super::card::{Card, Made};
use super::{PlaceOf, Run, RunInfo, checkpoints, store};
use crate::choices::name_of;
use crate::device::describe;
use crate::interrupt;
use crate::report::{Outcome, Report, seconds};
use crate::run_folder::RunFolder;
use crate::stages::{self, Seconds, Stage};
use anyhow::Result;
use candle::Device;
use chandlery::pictures::curves::{self, Panel};
use serde_json::{Value, json};

/// The learning curves.
const CURVES: &str = "curves.svg";
/// Stages beside training that the last line tells of, and the least that it tells, in seconds.
const TOLD: (usize, f64) = (2, 0.05);

/// A run whose training is done.
pub struct Trained<R: Run> {
    /// Where the program says how it goes.
    pub report: Report,
    /// Where it computes.
    pub device: Device,
    /// Where it leaves its files.
    pub folder: RunFolder,
    /// What it was asked for.
    pub info: RunInfo<R::Input, R::Settings>,
    /// How far it came.
    pub place: PlaceOf<R>,
    /// Seconds of the processes before this one.
    pub(super) earlier: f64,
}

impl<R: Run> Trained<R> {
    /// Writes the last checkpoint, where the training did not.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn save(&self, trainer: &R::Trainer) -> Result<()> {
        checkpoints::write(&self.folder, |path| store::<R>(trainer, path, &self.place))
    }

    /// Draws the learning curves.
    ///
    /// # Errors
    /// When a panel cannot be drawn, or the disk refuses.
    pub fn draw_curves(&self, panels: &[Panel]) -> Result<()> {
        let _stage = stages::enter(Stage::Pictures);
        self.folder.write(CURVES, curves::draw(panels)?.as_bytes())
    }

    /// Writes `results.json` and the model card, and says where the run is.
    ///
    /// Beside `results`, an object, the JSON has `out`, `device`, `seconds` of the whole run,
    /// `training_seconds` of its training with checkpoints and measures on the way, and
    /// `stage_seconds` of this process ([`stages`]).
    ///
    /// # Errors
    /// When the disk or standard output refuses.
    pub fn finish(&self, seed: u64, results: Value, card: &Card<'_>) -> Result<Outcome> {
        let _stage = stages::enter(Stage::Files);
        let (device, spent) = (describe(&self.device), stages::seconds());
        let (total, told) = (self.earlier + spent.total(), told(&spent));
        let mut all = json!({
            "out": self.folder.path(),
            "device": device,
            "seed": seed,
            "seconds": total,
            "training_seconds": self.place.run_seconds,
            (stages::FIELD): spent,
        });
        if let (Some(all), Value::Object(results)) = (all.as_object_mut(), results) {
            all.extend(results);
        }
        self.folder.write_json("results.json", &all)?;
        let made = Made {
            version: &self.info.version,
            command: &self.info.command,
            seed,
            device: &device,
            seconds: total,
        };
        self.folder.write("README.md", card.text(&made).as_bytes())?;
        let words = format!("{} in {}{told}", self.folder.path().display(), seconds(total));
        self.report.line(&words)?;
        self.report.finish(all)?;
        // The run is whole: there is nothing to resume.
        interrupt::take_words();
        Ok(Outcome::Done)
    }
}

/// The largest stages beside training in brackets: ` (measures 1.2 s, pictures 0.4 s)`.
fn told(spent: &Seconds) -> String {
    let (most, least) = TOLD;
    let mut others = spent.all();
    others.retain(|&(stage, seconds)| stage != Stage::Training && seconds >= least);
    others.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let words: Vec<String> =
        others.iter().take(most).map(|(stage, s)| format!("{} {}", name_of(stage), seconds(*s))).collect();
    if words.is_empty() { String::new() } else { format!(" ({})", words.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_two_beside_training_are_told() {
        let of = |spent: &[(Stage, f64)]| told(&spent.iter().copied().collect());
        let all = [
            (Stage::Start, 0.7),
            (Stage::Training, 9.),
            (Stage::Measures, 1.21),
            (Stage::Pictures, 75.),
            (Stage::Files, 0.04),
        ];
        assert_eq!(of(&all), " (pictures 1 min 15 s, measures 1.2 s)");
        assert_eq!(of(&[(Stage::Training, 9.), (Stage::Files, 0.06)]), " (files 0.1 s)");
        assert_eq!(of(&[(Stage::Training, 9.), (Stage::Files, 0.04)]), "");
    }
}
