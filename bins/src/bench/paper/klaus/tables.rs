//! Tables 1 to 7.
use super::measured::{Measured, PROGRAMS, Times};
use crate::bench::floor::Gpu;
use crate::bench::paper::{Cell, Headline, Paper, Table, break_even};
use crate::bench::sparse_autoencoder::flop;
use crate::bench::sparse_autoencoder::printed::{self, ROWS, SECONDS, SIZES, SPEEDUPS, TABLES};
use anyhow::{Context, Result};

/// The heads of the columns: the first, and one for each size.
fn heads(first: &str, more: &[&str]) -> Vec<String> {
    let sizes = SIZES.iter().map(|(v, h)| format!("{v}x{h}"));
    let more = more.iter().map(|&head| head.to_owned());
    std::iter::once(first.to_owned()).chain(sizes).chain(more).collect()
}

fn table(title: String, first: &str, more: &[&str]) -> Table {
    let heads = heads(first, more);
    Table::new(title, &heads.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A row of times or factors; those that were not measured are left out.
fn row(name: &str, values: impl IntoIterator<Item = Option<f64>>, cell: fn(f64) -> Cell) -> Vec<Cell> {
    let cells = values.into_iter().map(|value| Cell::or_none(value, cell));
    std::iter::once(Cell::text(name)).chain(cells).collect()
}

/// The paper's rows of the variants that `is_in` names.
fn printed_rows(table: &mut Table, is_in: impl Fn(&str) -> bool) {
    for (name, seconds) in SECONDS.iter().filter(|(name, _)| is_in(name)) {
        table.row(row(name, seconds.map(Some), Cell::seconds));
    }
}

/// What the rows of serial programs mean.
fn note_levels(table: &mut Table) {
    table.note(format!(
        "seconds of one pass over {ROWS} rows, forward and back; here: the loops of the paper in Rust, f32 with the exponential in f64"
    ));
    table.note(
        "a Rust function cannot have an optimisation level of its own: in the rows _0 every sum passes through memory, \
         which is most of what the flag -O0 does; the rows _3 are as compiled, with vectors where sums need no other order",
    );
    table.note(
        "larger sizes are timed over fewer rows and scaled: a pass without the decay is as much work as it has rows",
    );
}

/// Tables 1 to 4: a serial program with the flags of its compiler, and Matlab.
pub fn serial(paper: &mut Paper<'_>, measured: &mut Measured, number: usize) -> Result<()> {
    let &(title, letters) = number.checked_sub(1).and_then(|i| TABLES.get(i)).context("no such table")?;
    let mut made = table(format!("Table {number}: {title}"), "program", &[]);
    printed_rows(&mut made, |name| name.starts_with(letters) || name == "Matlab");
    for (name, ..) in PROGRAMS.iter().filter(|(name, ..)| name.starts_with(letters)) {
        made.row(row(&format!("here: {name}"), measured.program(paper, name)?, Cell::seconds));
    }
    note_levels(&mut made);
    if letters.ends_with("omp") {
        made.note(format!(
            "here: {} threads, each loop over units divided among them; the paper has machines of up to 32 cores",
            rayon::current_num_threads()
        ));
    }
    paper.table(made)
}

/// Table 5: Matlab and CUDA; ours on each place.
pub fn gpu(paper: &mut Paper<'_>, measured: &mut Measured) -> Result<()> {
    let mut made = table("Table 5: CUDA implementation".to_owned(), "program", &[]);
    printed_rows(&mut made, |name| name == "Matlab" || name == "GPU");
    for (name, times) in measured.best(paper)? {
        made.row(row(name, *times, Cell::seconds));
    }
    let cuda = printed::seconds("GPU").context("the paper has a GPU")?;
    for (name, times) in measured.best(paper)? {
        let factors = times.iter().zip(cuda).map(|(ours, cuda)| ours.map(|ours| cuda / ours));
        made.row(row(&format!("the paper's GPU over {name}"), factors, Cell::factor));
    }
    made.note("our pass is the cost with its decay and its gradient, by matrix products over all rows");
    made.note("on a CPU larger sizes are timed over fewer rows, at least 512, and scaled");
    made.note(left_out());
    paper.table(made)
}

/// Why two kernels of the paper are not here, by numbers.
fn left_out() -> String {
    let (v, h) = SIZES[SIZES.len() - 1];
    let gpu = Gpu::H200;
    // Of a row of W and an input that stays in the cache: four bytes for a multiplication and an
    // addition.
    let row_per_block = flop(v, h) / 2. * 4. / gpu.memory_bytes;
    let tiled = flop(v, h) / gpu.f32_flops;
    let kib = |(v, h): (usize, usize)| 4. * (v * h) as f64 / 1024.;
    format!(
        "the kernels of section 1.4.1 are not made: with a block for each row of W and input a weight comes from memory for every two FLOP, \
         {row_per_block:.1} s at {v}x{h} on an H200 against {tiled:.2} s of arithmetic in tiles; all of W in each block takes {:.0} KiB at 128x64, \
         {:.0} KiB at 256x128 and {:.0} KiB at 512x256, and a block has 227 KiB (48 KiB in 2014)",
        kib(SIZES[1]),
        kib(SIZES[2]),
        kib(SIZES[3]),
    )
}

/// Table 6: all of them.
pub fn all(paper: &mut Paper<'_>, measured: &mut Measured) -> Result<()> {
    let mut made = table("Table 6: all implementations".to_owned(), "program", &[]);
    printed_rows(&mut made, |_| true);
    for (name, ..) in PROGRAMS {
        made.row(row(&format!("here: {name}"), measured.program(paper, name)?, Cell::seconds));
    }
    for (name, times) in measured.best(paper)? {
        made.row(row(name, *times, Cell::seconds));
    }
    note_levels(&mut made);
    paper.table(made)
}

/// The number of input nodes from which `fast` is the faster.
fn even(slow: &[Option<f64>], fast: &[Option<f64>]) -> Option<f64> {
    let all = SIZES.iter().zip(slow.iter().zip(fast));
    let (mut sizes, mut slows, mut fasts) = (vec![], vec![], vec![]);
    for (&(v, _), (&slow, &fast)) in all {
        if let (Some(slow), Some(fast)) = (slow, fast) {
            sizes.push(v as f64);
            slows.push(slow);
            fasts.push(fast);
        }
    }
    break_even(&sizes, &slows, &fasts)
}

/// Table 7: how many times as long each takes as the fastest place, and from which size on.
pub fn speedups(paper: &mut Paper<'_>, measured: &mut Measured) -> Result<()> {
    let mut made =
        table("Table 7: speed-ups over each implementation".to_owned(), "program", &["break-even, inputs"]);
    let cuda = printed::seconds("GPU").context("the paper has a GPU")?.map(Some);
    let with_even = |name: &str, ratios: Vec<Option<f64>>, at: Option<f64>| {
        let mut cells = row(name, ratios, Cell::factor);
        cells.push(Cell::or_none(at, |at| Cell::number(at, 0)));
        cells
    };
    for ((name, ratios), (_, seconds)) in SPEEDUPS.iter().zip(&SECONDS) {
        let at = if *name == "GPU" { None } else { even(&seconds.map(Some), &cuda) };
        made.row(with_even(&format!("CUDA over {name}"), ratios.iter().copied().map(Some).collect(), at));
    }
    let (fastest, fast) = measured.best(paper)?.last().cloned().context("there must be a place")?;
    let mut others: Vec<(String, Times)> = Vec::new();
    for (name, ..) in PROGRAMS {
        others.push((format!("here: {name}"), measured.program(paper, name)?));
    }
    others.extend(measured.best(paper)?.iter().filter(|(name, _)| *name != fastest).cloned());
    for (name, times) in &others {
        let ratios = times.iter().zip(fast).map(|(slow, fast)| Some(slow.as_ref()? / fast?)).collect();
        let fast_name = fastest.trim_start_matches("here: ");
        made.row(with_even(&format!("{fast_name} over {name}"), ratios, even(times, &fast)));
    }
    made.note("break-even: the number of inputs from which it is faster at all larger sizes, between sizes by logarithms; the first size where it always is");
    headline(paper, &others, &fast);
    paper.table(made)
}

/// The factors at the largest size that was timed.
fn headline(paper: &mut Paper<'_>, others: &[(String, Times)], fast: &Times) {
    let Some(last) = fast.iter().rposition(Option::is_some) else { return };
    let over = |name: &str| {
        let (_, times) = others.iter().find(|(other, _)| other == name)?;
        Some(times.get(last).copied().flatten()? / fast.get(last).copied().flatten()?)
    };
    let words = |factor: Option<f64>| {
        let cell = Cell::or_none(factor, Cell::factor);
        cell.as_str().to_owned()
    };
    let (v, h) = SIZES[last];
    let printed = |name: &str| printed::seconds(name).zip(printed::seconds("GPU"));
    let of_paper = |name: &str| printed(name).map(|(slow, gpu)| slow[last] / gpu[last]);
    let one_thread = others.iter().find(|(name, _)| name.contains("1 thread")).map(|(name, _)| name.clone());
    paper.headline(Headline {
        claim: format!(
            "sparse autoencoder {v}x{h}: a training pass on the GPU (here on the last place of table 5) over the unrolled serial program"
        ),
        paper: words(of_paper("serial_loop_3")),
        same: words(over("here: serial_loop_3")),
        best: words(one_thread.and_then(|name| over(&name))),
    });
    paper.headline(Headline {
        claim: format!("sparse autoencoder {v}x{h}: the same over the naive serial program, unoptimised"),
        paper: words(of_paper("serial_naive_0")),
        same: words(over("here: serial_naive_0")),
        best: "–".to_owned(),
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn cuda_overtakes_each_variant_where_the_paper_says() {
        let of = |name: &str| printed::seconds(name).unwrap().map(Some);
        let at = |name: &str| even(&of(name), &of("GPU")).unwrap();
        // Section 2: from 1024 inputs on it is faster than all serial programs and Matlab, and on
        // smaller ones than the naive program without optimisation alone.
        for (name, _) in SECONDS.iter().filter(|(name, _)| *name != "GPU") {
            assert!(at(name) <= 1024., "{name}: {}", at(name));
        }
        assert!(at("Matlab") > 512. && at("serial_loop_3") > 512.);
        assert_eq!(at("serial_naive_0").round(), 64.);
        // Sizes that were not timed are left out.
        let [mut few, gpu] = [of("Matlab"), of("GPU")];
        few[7] = None;
        assert!((even(&few, &gpu).unwrap() - at("Matlab")).abs() < 1e-9);
    }

    #[test]
    fn what_is_left_out_is_left_out_by_numbers() {
        let text = left_out();
        // 128 · 64 · 4 bytes are 32 KiB; 2.0·10¹² weights of 4 bytes at 4.3·10¹² bytes a second 1.9
        // s.
        for part in ["32 KiB at 128x64", "128 KiB at 256x128", "512 KiB at 512x256", "1.9 s at 8192x4096"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
