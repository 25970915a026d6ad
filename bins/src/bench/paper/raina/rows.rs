//! Rows of tables that compare the places where something ran with the paper's.
use super::super::{Cell, Headline};
use super::PAPER_GPU;
use super::printed::Printed;
use crate::bench::place::Place;

/// Seconds by place, in the order of the places, for each column of a table; none where a cell was
/// left out.
pub(super) type ByPlace = Vec<Vec<Option<f64>>>;

/// The rows that the paper prints, and its speed-ups, computed.
pub(super) fn of_paper(printed: &[Printed]) -> Vec<Vec<Cell>> {
    let row = |name: &str, seconds: fn(&Printed) -> f64| {
        let cells = printed.iter().map(|one| Cell::seconds(seconds(one)));
        [Cell::text(name)].into_iter().chain(cells).collect()
    };
    let gpu = format!("paper: {PAPER_GPU}");
    vec![
        row("paper: single CPU", |one| one.single),
        row("paper: dual-core", |one| one.dual),
        row(&gpu, |one| one.gpu),
        [Cell::text("paper: speed-up")]
            .into_iter()
            .chain(printed.iter().map(|one| Cell::factor(one.speedup)))
            .collect(),
    ]
}

/// A row for each place.
pub(super) fn of_places(name: &str, places: &[Place], seconds: &ByPlace) -> Vec<Vec<Cell>> {
    let of = |(i, place): (usize, &Place)| {
        let cells =
            seconds.iter().map(|column| Cell::or_none(column.get(i).copied().flatten(), Cell::seconds));
        [Cell::text(format!("{name}, {}", place.name()))].into_iter().chain(cells).collect()
    };
    places.iter().enumerate().map(of).collect()
}

/// The speed-up of the last place over the one before it: of the GPU over all cores, or on a CPU of
/// all cores over one thread.
pub(super) fn speed_ups(name: &str, fast: &[Option<f64>], slow: &[Option<f64>]) -> Vec<Cell> {
    let cells = fast.iter().zip(slow).map(|(fast, slow)| Cell::or_none(factor(*fast, *slow), Cell::factor));
    [Cell::text(name)].into_iter().chain(cells).collect()
}

/// How many times as fast.
pub(super) fn factor(fast: Option<f64>, slow: Option<f64>) -> Option<f64> {
    Some(slow? / fast?).filter(|factor| factor.is_finite())
}

/// The times of one place, for each column.
pub(super) fn at(seconds: &ByPlace, place: usize) -> Vec<Option<f64>> {
    seconds.iter().map(|column| column.get(place).copied().flatten()).collect()
}

/// A line of the table of headlines.
pub(super) fn headline(claim: &str, paper: f64, same: Option<f64>, best: Option<f64>) -> Headline {
    let text = |factor| Cell::or_none(factor, Cell::factor).as_str().to_owned();
    Headline { claim: claim.to_owned(), paper: text(Some(paper)), same: text(same), best: text(best) }
}

/// Whether the last place is a GPU: without one there is nothing to say beside the paper's factors.
pub(super) fn with_gpu(places: &[Place]) -> bool {
    places.last().is_some_and(|place| !place.device.is_cpu())
}

/// The last place and the one before it.
pub(super) fn ends(places: &[Place]) -> (usize, usize) {
    let last = places.len().saturating_sub(1);
    (last, last.saturating_sub(1))
}

/// What a speed-up compares: the last place and the one before it.
pub(super) fn over(places: &[Place]) -> String {
    let (last, before) = ends(places);
    match (places.get(last), places.get(before)) {
        (Some(last), Some(before)) => format!("{} over {}", last.name(), before.name()),
        _ => String::new(),
    }
}
