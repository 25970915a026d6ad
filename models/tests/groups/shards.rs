//! Ranks that divide rows read rows of their own alone from a feed that streams, and learn what
//! they learn from all of them.
use super::{CPU, Run, close, each};
use candle::Result;
use chandlery::dae::{Dae, DaeConfig, DaeTrainConfig, DaeTrainer};
use chandlery::datasets::{Feed, FeedConfig, RowType, Source, Split};
use chandlery::dbn::{Dbn, DbnConfig, DbnTrainer};
use chandlery::dictionary::{
    Dictionary, DictionaryConfig, OnlineDictionaryTrainConfig, OnlineDictionaryTrainer,
};
use chandlery::feedforward::{Feedforward, FeedforwardConfig, FeedforwardTrainConfig, FeedforwardTrainer};
use chandlery::labelled::{LabelledDbn, LabelledDbnTrainConfig, LabelledDbnTrainer};
use chandlery::rbm::{Division, Rbm, RbmConfig, RbmTrainConfig, RbmTrainer};
use chandlery::sparse_autoencoder::sae::{self, Kind, Sae, SaeConfig, SaeTrainConfig, SaeTrainer};
use chandlery::sparse_autoencoder::{
    SparseAutoencoder, SparseAutoencoderConfig, SparseAutoencoderTrainConfig, SparseAutoencoderTrainer,
};
use chandlery::sparse_coding::{
    SparseCoding, SparseCodingConfig, SparseCodingTrainConfig, SparseCodingTrainer,
};
use chandlery::{MinibatchTrainer, Model, Trainer};
use chandlery_ops::core::{normal, uniform};
use chandlery_ops::{Group, Philox};
use std::sync::{Arc, Mutex};

const ROWS: usize = 103;
const WIDTH: usize = 12;
const BATCH: usize = 22;
const CLASSES: usize = 3;
const WORLD: usize = 3;

/// Rows of numbers from 0.1 to 0.9, and which were read, in order.
#[derive(Debug)]
struct Watched {
    rows: Vec<Vec<f32>>,
    read: Mutex<Vec<u32>>,
}

impl Watched {
    fn new() -> Result<Self> {
        let rows = (uniform((ROWS, WIDTH), &CPU, Philox::new(2, 0))?.affine(0.8, 0.1)?).to_vec2()?;
        Ok(Self { rows, read: Mutex::default() })
    }
}

impl Source for Watched {
    fn n_samples(&self) -> usize {
        ROWS
    }
    fn n_features(&self) -> usize {
        WIDTH
    }
    fn row_type(&self) -> RowType {
        RowType::F32
    }
    fn read_rows(&self, indices: &[u32], out: &mut [u8]) -> chandlery::datasets::Result<()> {
        self.read.lock().unwrap().extend(indices);
        for (&index, out) in indices.iter().zip(out.chunks_exact_mut(4 * WIDTH)) {
            let bytes: Vec<u8> = self.rows[index as usize].iter().flat_map(|x| x.to_ne_bytes()).collect();
            out.copy_from_slice(&bytes);
        }
        Ok(())
    }
}

/// What two epochs come to from a feed, and the rows that were read, in order.
fn epochs<T>(mut trainer: T, streams: bool) -> Result<(Run, Vec<u32>)>
where
    T: MinibatchTrainer,
    T::Model: Model,
{
    let source = Arc::new(Watched::new()?);
    let labels = (0..ROWS as u32).map(|i| i % CLASSES as u32).collect();
    let split = Split::new(source.clone(), Some(labels)).map_err(candle::Error::wrap)?;
    let resident_bytes = if streams { None } else { Some(usize::MAX) };
    let config = FeedConfig { resident_bytes, chunk_bytes: 1, ..FeedConfig::new(BATCH, 7) };
    let mut feed = Feed::new(&split, &CPU, config).map_err(candle::Error::wrap)?;
    let metrics = trainer.fit(&mut feed, 2)?;
    trainer.gather()?;
    let last = metrics.into_iter().last();
    let read = source.read.lock().unwrap().clone();
    Ok((Run::of(&trainer.model()?, last)?, read))
}

/// Ranks that read their own rows alone, or all, against ranks whose rows are all there.
fn read_alike<T>(what: &str, divides_rows: bool, make: impl Fn(&Group) -> Result<T> + Sync) -> Result<()>
where
    T: MinibatchTrainer,
    T::Model: Model,
{
    let there = each(WORLD, |group| Ok(epochs(make(group)?, false)?.0))?;
    let streamed = each(WORLD, |group| epochs(make(group)?, true))?;
    let minibatches = (0..ROWS).step_by(BATCH).map(|first| BATCH.min(ROWS - first));
    let mut first_epoch: Vec<u32> = vec![];
    for (rank, ((run, read), there)) in streamed.iter().zip(&there).enumerate() {
        assert_eq!(run.parameters.len(), there.parameters.len(), "{what}");
        for (a, b) in run.parameters.iter().zip(&there.parameters) {
            close(what, *a, *b, 1e-12);
        }
        assert_eq!(run.metrics, there.metrics, "{what}");
        let group = &Group::threads(WORLD)[rank];
        let own: usize = match divides_rows {
            true => minibatches.clone().map(|n| group.rows(n).len()).sum(),
            false => ROWS,
        };
        // Two epochs, and chunks ahead of a third.
        assert!((2 * own..=2 * own + 3 * BATCH).contains(&read.len()), "{what}: {} rows read", read.len());
        first_epoch.extend(&read[..own]);
    }
    first_epoch.sort_unstable();
    let times = if divides_rows { 1 } else { WORLD };
    let want: Vec<u32> = (0..ROWS as u32).flat_map(|row| std::iter::repeat_n(row, times)).collect();
    assert_eq!(first_epoch, want, "{what}");
    Ok(())
}

#[test]
fn ranks_that_divide_rows_read_an_epoch_once_together() -> Result<()> {
    let rbm = RbmConfig::new(WIDTH, 16);
    let training = |division| RbmTrainConfig { batch: BATCH, division, ..RbmTrainConfig::default() };
    for (division, rows) in [(Division::Rows, true), (Division::Units, false)] {
        read_alike(&format!("RBM, {division:?}"), rows, |group| {
            let rbm = Rbm::init(rbm.clone(), Philox::new(1, 0), &CPU)?;
            RbmTrainer::new(&rbm, training(division), Philox::new(1, 1))?.in_group(group)
        })?;
    }
    read_alike("network of RBMs", true, |group| {
        let dbn = Dbn::init(DbnConfig::new(&[WIDTH, 16, 8]), Philox::new(1, 0), &CPU)?;
        let training = vec![training(Division::Rows); 2];
        DbnTrainer::new(&dbn, training, Philox::new(1, 1))?.in_group(group)
    })?;
    read_alike("up-down", true, |group| {
        let dbn = Dbn::init(DbnConfig::new(&[WIDTH, 8, 9]), Philox::new(1, 0), &CPU)?;
        let config = LabelledDbnTrainConfig { batch: BATCH, ..LabelledDbnTrainConfig::default() };
        let dbn = LabelledDbn::from_dbn(&dbn, CLASSES)?;
        LabelledDbnTrainer::new(&dbn, config, Philox::new(1, 1))?.in_group(group)
    })?;
    read_alike("feed-forward network", true, |group| {
        let config = FeedforwardConfig::classifier(&[WIDTH, 9, CLASSES]);
        let network = Feedforward::init(config, Philox::new(1, 0), &CPU)?;
        let config = FeedforwardTrainConfig { batch: BATCH, ..FeedforwardTrainConfig::default() };
        FeedforwardTrainer::new(&network, config, Philox::new(1, 1))?.in_group(group)
    })?;
    read_alike("denoising autoencoder", true, |group| {
        let dae = Dae::init(DaeConfig::new(WIDTH, 9), Philox::new(1, 0), &CPU)?;
        let config = DaeTrainConfig { batch: BATCH, ..DaeTrainConfig::default() };
        DaeTrainer::new(&dae, config, Philox::new(1, 1))?.in_group(group)
    })?;
    read_alike("sparse autoencoder", true, |group| {
        let model = SparseAutoencoder::init(SparseAutoencoderConfig::new(WIDTH, 9), Philox::new(1, 0), &CPU)?;
        let config = SparseAutoencoderTrainConfig { batch: BATCH, ..SparseAutoencoderTrainConfig::default() };
        SparseAutoencoderTrainer::new(&model, config)?.in_group(group)
    })?;
    for (division, rows) in [(sae::Division::Rows, true), (sae::Division::Latents, false)] {
        read_alike(&format!("latents, {division:?}"), rows, |group| {
            let model = Sae::init(SaeConfig::new(WIDTH, 24, Kind::TopK { k: 3 }), Philox::new(1, 0), &CPU)?;
            let config = SaeTrainConfig { batch: BATCH, division, ..SaeTrainConfig::default() };
            SaeTrainer::new(&model, config, Philox::new(1, 1))?.in_group(group)
        })?;
    }
    let atoms = |n: usize| normal((n, WIDTH), &CPU, Philox::new(1, 0));
    read_alike("dictionary", true, |group| {
        let dictionary = Dictionary::from_tensor(DictionaryConfig::new(20, WIDTH, 3), atoms(20)?)?;
        let config = OnlineDictionaryTrainConfig::default();
        OnlineDictionaryTrainer::new(dictionary, config, Philox::new(1, 1))?.in_group(group)
    })?;
    read_alike("sparse coding", true, |group| {
        let model = SparseCoding::from_tensor(SparseCodingConfig::new(20, WIDTH, 0.3), atoms(20)?)?;
        let config = SparseCodingTrainConfig::default();
        SparseCodingTrainer::new(&model, config, Philox::new(1, 1))?.in_group(group)
    })
}

#[test]
fn a_rank_that_is_alone_reads_all_rows() -> Result<()> {
    let rbm = Rbm::init(RbmConfig::new(WIDTH, 16), Philox::new(1, 0), &CPU)?;
    let training = RbmTrainConfig { batch: BATCH, division: Division::Rows, ..RbmTrainConfig::default() };
    let (_, read) = epochs(RbmTrainer::new(&rbm, training, Philox::new(1, 1))?, true)?;
    let mut first: Vec<u32> = read[..ROWS].to_vec();
    first.sort_unstable();
    assert_eq!(first, (0..ROWS as u32).collect::<Vec<_>>());
    Ok(())
}
