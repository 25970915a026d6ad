//! The command `top`: the rows that excite each latent most, as a file and as a page.
use super::apply::each;
use super::args::TopArgs;
use crate::out_folder::OutFolder;
use crate::patch_rows::open;
use crate::ranks::Ranks;
use crate::report::{Outcome, Report};
use crate::rows::Rows;
use crate::stages::{self, Stage};
use anyhow::{Context, Result, ensure};
use candle::Device;
use chandlery::pictures::page::LeftOut;
use chandlery::pictures::page::latents::{Latent, LatentsPage};
use chandlery::pictures::page::sprites::Sprites;
use chandlery::sparse_autoencoder::sae::{Sae, TopRows};
use chandlery_datasets::count;
use chandlery_datasets::whole::write_whole;
use serde_json::json;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The names of the files.
const FILE: &str = "top.safetensors";
const PAGE: &str = "top.html";
/// Neighbours of a latent on the page.
const NEIGHBOURS: usize = 8;
/// Letters of a text on the page.
const LETTERS: usize = 400;

/// Writes both files.
pub fn top(args: &TopArgs) -> Result<Outcome> {
    let report = Report::new(args.of.common.json);
    let out = out_folder(args)?;
    let device = args.of.common.open_device()?;
    let (model, rows) = open::<Sae>(&args.of, &device)?;
    let texts = args.texts.as_deref().map(|path| Texts::open(path, rows.split.n_samples())).transpose()?;
    let mut top = TopRows::new(model.config().n_latents, args.rows)?;
    let alone = (&Ranks::default(), &device);
    each(&model, &rows, alone, |block| Ok(top.add(&block.codes)?))?;
    let _stage = stages::enter(Stage::Pictures);
    top.save(&out.file(FILE)?)?;
    write_page(args, &out, &model, &rows, &top, texts)?;
    let (n, l0, dead) = (top.n_rows(), top.l0(), top.n_dead());
    report.line(&format!(
        "{} of each of {}, L0 {l0:.2} over {} of {}, {dead} latents never active, in {}; {} shows them in a browser",
        count(args.rows, "row"),
        count(model.config().n_latents, "latent"),
        rows.words(),
        rows.name,
        out.path(FILE).display(),
        out.path(PAGE).display()
    ))?;
    report.finish(json!({
        "out": out.path(FILE),
        "page": out.path(PAGE),
        "model": args.of.model.model,
        "data": rows.name,
        "n_samples": n,
        "n_latents": model.config().n_latents,
        "rows": args.rows,
        "l0": l0,
        "dead_latents": dead,
    }))?;
    Ok(Outcome::Done)
}

/// The folder that is asked for, which is made if need be, or that of the model.
fn out_folder(args: &TopArgs) -> Result<OutFolder> {
    let model = Path::new(&args.of.model.model);
    match &args.out {
        Some(out) => OutFolder::asked(out),
        None => {
            ensure!(model.is_dir(), "--out: {} is no folder here; name one to write to", model.display());
            OutFolder::at(model)
        }
    }
}

/// Lines of a file.
struct Texts<'a> {
    path: &'a Path,
}

impl<'a> Texts<'a> {
    /// A file with a line for each of `n_rows` rows.
    fn open(path: &'a Path, n_rows: usize) -> Result<Self> {
        let texts = Self { path };
        let mut n = 0;
        texts.each(|_, _| n += 1)?;
        ensure!(
            n == n_rows,
            "--texts {}: must have a line for each of the {}, got {}",
            path.display(),
            count(n_rows, "row"),
            count(n, "line")
        );
        Ok(texts)
    }

    /// Calls `f` with the number and the bytes of each line.
    fn each(&self, mut f: impl FnMut(u32, &[u8])) -> Result<()> {
        let at = || format!("--texts {}", self.path.display());
        let mut reader = BufReader::new(File::open(self.path).with_context(at)?);
        let mut line = Vec::new();
        for number in 0.. {
            line.clear();
            if reader.read_until(b'\n', &mut line).with_context(at)? == 0 {
                break;
            }
            f(number, line.strip_suffix(b"\n").unwrap_or(&line));
        }
        Ok(())
    }

    /// Those of `rows`, which ascend, cut to [`LETTERS`].
    fn of(&self, rows: &[u32]) -> Result<Vec<String>> {
        let mut texts = Vec::with_capacity(rows.len());
        self.each(|number, line| {
            if rows.get(texts.len()) == Some(&number) {
                let text = String::from_utf8_lossy(line);
                let mut cut: String = text.chars().take(LETTERS).collect();
                if cut.len() < text.len() {
                    cut.push('…');
                }
                texts.push(cut);
            }
        })?;
        Ok(texts)
    }
}

/// Writes the page of the latents that are active most often.
fn write_page(
    args: &TopArgs,
    out: &OutFolder,
    model: &Sae,
    rows: &Rows,
    top: &TopRows,
    texts: Option<Texts<'_>>,
) -> Result<()> {
    let (uses, densities) = (top.uses(), top.densities());
    let mut numbers: Vec<u32> = (0..uses.len() as u32).collect();
    let uses_of = |latent: u32| uses.get(latent as usize).copied().unwrap_or(0);
    numbers.sort_by_key(|&latent| (std::cmp::Reverse(uses_of(latent)), latent));
    numbers.truncate(args.page_latents);
    let kept = |latent: u32| top.of(latent as usize);
    let shown: BTreeSet<u32> = numbers.iter().flat_map(|&latent| kept(latent).map(|(row, _)| row)).collect();
    let shown: Vec<u32> = shown.into_iter().collect();
    let neighbours = model.decoder_neighbours(&numbers, NEIGHBOURS)?;
    let place = |row: u32| shown.binary_search(&row).unwrap_or_default();
    let latents: Vec<Latent> = numbers
        .iter()
        .zip(neighbours)
        .map(|(&number, neighbours)| Latent {
            number,
            uses: uses_of(number),
            density: densities.get(number as usize).copied().unwrap_or(0.),
            neighbours,
            top: kept(number).map(|(row, value)| (place(row), value)).collect(),
        })
        .collect();
    let mut notes = vec![format!(
        "Densities are shares of {}; the rows of {} are counted from 0.",
        count(top.n_rows(), "row"),
        rows.name
    )];
    if latents.len() < uses.len() {
        notes.push(format!(
            "Of {} the {} that are most often active are here (--page-latents).",
            count(uses.len(), "latent"),
            latents.len()
        ));
    }
    let sprites = match shown.is_empty() {
        true => None,
        false => {
            let raw = rows.split.select(&shown)?.to_tensor(&Device::Cpu)?;
            Sprites::new(&raw, rows.split.image, args.page_limit << 20)?
                .map_err(|why| {
                    if why == LeftOut::TooLarge {
                        let limit = args.page_limit;
                        notes.push(format!(
                            "The rows' pictures are left out: they take more than {limit} MiB (--page-limit)."
                        ));
                    }
                })
                .ok()
        }
    };
    let texts = texts.map(|texts| texts.of(&shown)).transpose()?;
    let config = model.config();
    let figures = [
        ("latents".to_owned(), config.n_latents.to_string()),
        ("active in a row".to_owned(), format!("{:.2}", top.l0())),
        ("never active".to_owned(), top.n_dead().to_string()),
        ("rows".to_owned(), top.n_rows().to_string()),
    ];
    let page = LatentsPage {
        title: &format!("Latents of {} on {}", args.of.model.model, rows.name),
        figures: &figures,
        n_rows: top.n_rows(),
        latents: &latents,
        rows: &shown,
        sprites: sprites.as_ref(),
        texts: texts.as_deref(),
        notes: &notes,
    };
    Ok(write_whole(&out.file(PAGE)?, |file| page.write(file))?)
}
