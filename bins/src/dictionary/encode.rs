//! The command `encode`: sparse codes of a data set to a file.
use super::args::{EncodeArgs, Settings};
use super::choices::SparseFormat;
use super::signals::{BLOCK, Signals, fitted};
use super::train::KIND;
use crate::atoms::given::{given, is_file};
use crate::atoms::summary::Summary;
use crate::options::located;
use crate::patch_rows::{DATA, InputArgs};
use crate::progress::Progress;
use crate::ranks::{self, Ranks};
use crate::report::{Outcome, Report, figure, of_data};
use crate::restore::check_step;
use crate::rows::{InTurn, Rows, agree, images, in_order, own};
use crate::run_folder::check_writable;
use anyhow::{Context, Result, anyhow, bail, ensure};
use candle::{Device, Tensor};
use chandlery::codes::{CodedImage, CodesFile, Cut, Format, Notes, csr, fingerprint};
use chandlery::dictionary::measure::{Figures, Measure};
use chandlery::dictionary::pursuit::SparseCoder;
use chandlery::dictionary::{DictionaryConfig, PursuitMethod, image::PatchGrid};
use chandlery_datasets::patches::ImageSet;
use chandlery_datasets::preparation::remove_mean;
use chandlery_datasets::whole::write_whole;
use chandlery_datasets::{Feed, ImageShape, Preparation, count};
use chandlery_ops::codes::{ErrorTarget, SparseCodes};
use serde_json::json;
use std::time::Instant;

/// Patches that are coded at once.
const BAND: usize = 65_536;

/// Writes the codes of every row, or of every patch of every image.
pub fn encode(args: &EncodeArgs) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    let format = Format::of(&args.out).context("--out")?;
    ensure!(
        args.sparse_format == SparseFormat::Padded || format == Format::Npz,
        "--sparse-format csr: --out must end in .npz, got {}",
        args.out.display()
    );
    check_writable(&args.out).context("--out")?;
    let (ranks, device) = ranks::join(&args.ranks, &args.common)?;
    let dictionary = given(&args.model, &device)?;
    let config = dictionary.config();
    let coder = coder(args, config)?;
    let asked = InputArgs { data: args.data.clone(), read: args.read.clone(), ..InputArgs::default() };
    let input = asked.or_those_of::<Settings>(&args.model, &KIND)?;
    let name = input.data.as_deref().unwrap_or(DATA);
    let base = input.base.as_deref();
    let (data, read) = (located(name, base), input.read.located(base));
    let holds_images = !input.cut.is_none() && images::are_in(&data)?;
    let started = Instant::now();
    let mut codes = Gathered {
        coder,
        atoms: dictionary.atoms(),
        preparation: config.preparation.clone(),
        parts: Vec::new(),
        measure: Measure::new(config.n_atoms),
    };
    // A file of atoms says nothing of what is done to rows.
    let says_nothing = is_file(&args.model);
    if let (true, Some(shape), None) = (holds_images, config.image, patch_side(config)) {
        bail!(
            "--data {name}: the atoms of this dictionary are patches of {shape}; images are coded with square grey patches only, others as rows of a file"
        )
    }
    let (unit, cut) = if let (true, Some(side)) = (holds_images, patch_side(config)) {
        ensure!(
            args.split.is_none(),
            "--split: {name} is cut into patches, which have no splits; leave it out"
        );
        if says_nothing {
            // Pixels are grey levels.
            codes.preparation = Preparation::scale(255.)?;
        }
        let patches = Patches::of(images::open(&data, &read)?, side, args.step.unwrap_or(side))?;
        agree(&ranks, [])?;
        let mut blocks = patches.blocks(&ranks, &device);
        codes.add_all((&ranks, &device), (name, patches.n_rows()), || blocks.next().transpose())?;
        drop(blocks);
        ("grey levels", Some(patches.cut))
    } else {
        ensure!(args.step.is_none(), "--step: is for patches of images, and {name} holds rows; leave it out");
        let dataset = read.open(&data)?;
        let n_inputs = config.n_inputs();
        ensure!(
            dataset.n_features() == n_inputs,
            "--data {name}: rows must have the {n_inputs} values of an atom, got {}",
            dataset.n_features()
        );
        let rows = Rows { name: name.to_owned(), ..Rows::of(dataset, args.split)? };
        if says_nothing {
            codes.preparation = fitted(&rows.split, &[], 0)?;
        }
        agree(&ranks, [&rows.split])?;
        let mut feed =
            own(&ranks, &rows.split, BLOCK)?.map(|own| in_order(&own, &device, BLOCK)).transpose()?;
        codes.add_all((&ranks, &device), (name, rows.split.n_samples()), || {
            Ok(feed.as_mut().map_or(Ok(None), Feed::next)?.map(|minibatch| minibatch.rows))
        })?;
        (Signals { rows, preparation: codes.preparation.clone() }.unit(), None)
    };
    ranks.first_goes_on();
    let notes = Notes { n_atoms: config.n_atoms, n_features: config.n_features, unit: unit.to_owned(), cut };
    let (file, figures) = codes.finish(notes)?;
    let n_rows = file.codes.count.elem_count();
    match args.sparse_format {
        SparseFormat::Padded => file.write(&args.out)?,
        SparseFormat::Csr => write_whole(&args.out, |out| csr::write(out, &file.codes))?,
    }
    report.line(&format!(
        "{} of {:.2} atoms on average in {}; RMSE {} {unit}",
        count(n_rows, "code"),
        figures.mean_count,
        args.out.display(),
        figure(figures.rmse, 4)
    ))?;
    let summary = Summary {
        n_nonzero: file.codes.width(),
        mean_count: figures.mean_count,
        seconds: Some(started.elapsed().as_secs_f64()),
        ..Summary::new(&args.out, config, unit, &device)
    };
    let own = json!({ "n_rows": n_rows, "used": figures.used, "rmse": figures.rmse });
    report.finish(summary.with(own)?)?;
    Ok(Outcome::Done)
}

/// How rows are coded: as in training, but for what the command line says.
///
/// A method without a form for coefficients of at least 0 is refused where the dictionary wants
/// those.
fn coder(args: &EncodeArgs, config: &DictionaryConfig) -> Result<SparseCoder> {
    let n_nonzero = args.nonzero.unwrap_or(config.n_nonzero);
    ensure!(
        n_nonzero <= config.n_atoms,
        "--nonzero: must be at most the {} atoms of this dictionary, got {n_nonzero}",
        config.n_atoms
    );
    let of_model = config.coder();
    let method = args.pursuit.map_or(of_model.method, Into::into);
    ensure!(
        !of_model.nonnegative || matches!(method, PursuitMethod::Omp | PursuitMethod::Ols),
        "--pursuit: must be omp or ols for this dictionary, whose coefficients must be at least 0, got {}",
        method.name()
    );
    let root = (config.n_features as f64).sqrt();
    let error = args.error.map(|rms| ErrorTarget::Absolute(rms * root));
    let chunk = args.chunk_rows.or(of_model.chunk);
    Ok(SparseCoder { method, n_nonzero, error: error.or(of_model.error), chunk, ..of_model })
}

/// The side of the square grey patches that a dictionary is for, if it is for such.
fn patch_side(config: &DictionaryConfig) -> Option<usize> {
    match config.image {
        Some(ImageShape { height, width, channels: 1 }) if height == width => Some(height),
        _ => None,
    }
}

/// All patches of all images, in their order.
struct Patches {
    set: ImageSet,
    grids: Vec<PatchGrid>,
    /// Where they are cut.
    cut: Cut,
}

impl Patches {
    fn of(set: ImageSet, side: usize, step: usize) -> Result<Self> {
        check_step(step, side)?;
        let (mut grids, mut images) = (vec![], vec![]);
        for image in set.images() {
            let (name, height, width) = (image.name().to_owned(), image.height(), image.width());
            let grid = PatchGrid::new(height, width, side, step);
            grids.push(grid.with_context(|| format!("--data: image {name}"))?);
            images.push(CodedImage { name, height, width });
        }
        Ok(Self { set, grids, cut: Cut { side, step, images } })
    }

    fn n_rows(&self) -> usize {
        self.grids.iter().map(PatchGrid::n_patches).sum()
    }

    /// Those of this rank: ranks take bands of images in turn.
    fn blocks<'a>(&'a self, ranks: &Ranks, device: &'a Device) -> impl Iterator<Item = Result<Tensor>> + 'a {
        let (rank, world) = ranks.place();
        let images = self.set.images().iter().zip(&self.grids).enumerate();
        let bands =
            images.flat_map(|(i, (image, grid))| grid.bands(BAND).map(move |band| (i, image, grid, band)));
        let mut last: Option<(usize, Tensor)> = None;
        bands.skip(rank).step_by(world).map(move |(i, image, grid, band)| {
            let plane = match last.take() {
                Some((of, plane)) if of == i => plane,
                _ => Tensor::from_vec(image.to_f32(), (image.height(), image.width()), device)?,
            };
            let rows = grid.rows(&plane, band)?;
            last = Some((i, plane));
            Ok(rows)
        })
    }
}

/// Codes on their way to a file.
struct Gathered<'a> {
    coder: SparseCoder,
    atoms: &'a Tensor,
    preparation: Preparation,
    /// Of each block what [`of`](Self::of) gives.
    parts: Vec<[Tensor; 4]>,
    measure: Measure,
}

impl Gathered<'_> {
    /// Codes this rank's blocks of `n` rows of a data set, and joins what all ranks have on the
    /// first.
    fn add_all(
        &mut self,
        (ranks, device): (&Ranks, &Device),
        (name, n): (&str, usize),
        mut next: impl FnMut() -> Result<Option<Tensor>>,
    ) -> Result<()> {
        let bar = Progress::rows(n as u64, 0);
        bar.label("coding".to_owned());
        let mut parts = Vec::new();
        let mut made =
            InTurn::new(ranks, device, || next()?.map(|rows| of_data(name, self.of(&rows))).transpose())?;
        while let Some(block) = made.next()? {
            let block: [Tensor; 4] = block.try_into().map_err(|_| anyhow!("codes must be four tensors"))?;
            bar.advance(block[2].elem_count() as u64);
            if ranks.is_first() {
                parts.push(block);
            }
        }
        let group = made.group().clone();
        drop(made);
        self.parts = parts;
        self.measure = self.measure.clone().joined(&group, device)?;
        bar.finish();
        Ok(())
    }

    /// The codes of raw rows: indices, values and count, and what the rows lost as their means.
    fn of(&mut self, rows: &Tensor) -> Result<Vec<Tensor>> {
        let with_mean = self.preparation.without_last_row_mean();
        let whole = with_mean.as_ref().unwrap_or(&self.preparation).apply(rows)?;
        let signals = if with_mean.is_some() { remove_mean(&whole)? } else { whole.clone() };
        let mean = (whole - &signals)?.mean(1)?;
        let codes = self.coder.encode(&signals, self.atoms)?;
        self.measure.add(&signals, &codes, self.atoms)?;
        Ok(vec![codes.indices, codes.values, codes.count, mean])
    }

    /// What the file holds, and what coding came to.
    fn finish(self, notes: Notes) -> Result<(CodesFile, Figures)> {
        let join = |part: usize| -> Result<Tensor> {
            let parts: Vec<_> = self.parts.iter().filter_map(|parts| parts.get(part)).collect();
            Ok(Tensor::cat(&parts, 0)?.to_device(&Device::Cpu)?)
        };
        let codes =
            SparseCodes { indices: join(0)?, values: join(1)?, count: join(2)?, n_atoms: notes.n_atoms };
        let mean = join(3)?;
        let dictionary = Some(fingerprint(self.atoms)?);
        Ok((CodesFile { dictionary, codes, mean, notes: Some(notes) }, self.measure.figures()))
    }
}
