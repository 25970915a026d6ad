//! The command `encode`: sparse codes of a data set to a file.
use super::args::{EncodeArgs, Settings};
use super::choices::SparseFormat;
use super::signals::{Signals, fitted};
use super::train::KIND;
use crate::atoms::given::{given, is_file};
use crate::atoms::summary::Summary;
use crate::options::located;
use crate::patch_rows::{DATA, InputArgs};
use crate::progress::Progress;
use crate::report::{Outcome, Report, figure, of_data};
use crate::restore::check_step;
use crate::rows::{Rows, images};
use crate::run_folder::check_writable;
use anyhow::{Context, Result, bail, ensure};
use candle::{Device, Tensor};
use chandlery::codes::{CodedImage, CodesFile, Cut, Format, Notes, csr, fingerprint};
use chandlery::dictionary::measure::{Figures, Measure};
use chandlery::dictionary::pursuit::SparseCoder;
use chandlery::dictionary::{DictionaryConfig, PursuitMethod, image::PatchGrid};
use chandlery_datasets::count;
use chandlery_datasets::patches::ImageSet;
use chandlery_datasets::preparation::remove_mean;
use chandlery_datasets::whole::write_whole;
use chandlery_datasets::{ImageShape, Preparation};
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
    let device = args.common.open_device()?;
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
        ("grey levels", Some(encode_images(args, images::open(&data, &read)?, side, &device, &mut codes)?))
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
        // A file of atoms says nothing of it.
        if is_file(&args.model) {
            codes.preparation = fitted(&rows.split, &[], 0)?;
        }
        let signals = Signals { rows, preparation: codes.preparation.clone() };
        let bar = Progress::rows(signals.rows.split.n_samples() as u64, 0);
        bar.label("coding".to_owned());
        let mut blocks = signals.blocks(&device)?;
        while let Some(rows) = blocks.next_raw()? {
            of_data(name, codes.add(&rows))?;
            bar.advance(rows.dim(0)? as u64);
        }
        bar.finish();
        (signals.unit(), None)
    };
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

/// All patches of all images, in their order; and where they were cut.
fn encode_images(
    args: &EncodeArgs,
    set: ImageSet,
    side: usize,
    device: &Device,
    codes: &mut Gathered,
) -> Result<Cut> {
    let step = args.step.unwrap_or(side);
    check_step(step, side)?;
    // A file of atoms says nothing of it: pixels are grey levels.
    if is_file(&args.model) {
        codes.preparation = Preparation::scale(255.)?;
    }
    let mut coded = Vec::with_capacity(set.images().len());
    let bar = Progress::iterations(set.images().len() as u64, 0);
    bar.label("coding images".to_owned());
    for image in set.images() {
        let (height, width) = (image.height(), image.width());
        let at = || format!("--data: image {}", image.name());
        let grid = PatchGrid::new(height, width, side, step).with_context(at)?;
        let plane = Tensor::from_vec(image.to_f32(), (height, width), device)?;
        for band in grid.bands(BAND) {
            codes.add(&grid.rows(&plane, band)?)?;
        }
        bar.advance(1);
        coded.push(CodedImage { name: image.name().to_owned(), height, width });
    }
    Ok(Cut { side, step, images: coded })
}

/// Codes on their way to a file.
struct Gathered<'a> {
    coder: SparseCoder,
    atoms: &'a Tensor,
    preparation: Preparation,
    parts: Vec<(SparseCodes, Tensor)>,
    measure: Measure,
}

impl Gathered<'_> {
    /// Codes raw rows; what they lost as their means is kept beside the codes.
    fn add(&mut self, rows: &Tensor) -> Result<()> {
        let with_mean = self.preparation.without_last_row_mean();
        let whole = with_mean.as_ref().unwrap_or(&self.preparation).apply(rows)?;
        let signals = if with_mean.is_some() { remove_mean(&whole)? } else { whole.clone() };
        let mean = (whole - &signals)?.mean(1)?;
        let codes = self.coder.encode(&signals, self.atoms)?;
        self.measure.add(&signals, &codes, self.atoms)?;
        self.parts.push((codes, mean));
        Ok(())
    }

    /// What the file holds, and what coding came to.
    fn finish(self, notes: Notes) -> Result<(CodesFile, Figures)> {
        let join = |of: &dyn Fn(&(SparseCodes, Tensor)) -> Tensor| -> Result<Tensor> {
            let parts: Vec<_> = self.parts.iter().map(of).collect();
            Ok(Tensor::cat(&parts, 0)?.to_device(&Device::Cpu)?)
        };
        let codes = SparseCodes {
            indices: join(&|(codes, _)| codes.indices.clone())?,
            values: join(&|(codes, _)| codes.values.clone())?,
            count: join(&|(codes, _)| codes.count.clone())?,
            n_atoms: notes.n_atoms,
        };
        let mean = join(&|(_, mean)| mean.clone())?;
        let dictionary = Some(fingerprint(self.atoms)?);
        Ok((CodesFile { dictionary, codes, mean, notes: Some(notes) }, self.measure.figures()))
    }
}
