//! Checkpoints that are damaged, of another trainer, or of images.
use super::{BATCH, CPU, N, feedforward, first_line, half};
use candle::Result;
use chandlery::checkpoint::verify;
use chandlery::dae::{Dae, DaeConfig, DaeTrainConfig, DaeTrainer, StackedDaeTrainer};
use chandlery::datasets::ImageShape;
use chandlery::datasets::preparation::StepConfig;
use chandlery::dbn::DbnTrainer;
use chandlery::dictionary::OnlineDictionaryTrainer;
use chandlery::feedforward::FeedforwardTrainer;
use chandlery::labelled::LabelledDbnTrainer;
use chandlery::rbm::RbmTrainer;
use chandlery::{MinibatchTrainer, Philox, Preparation, Trainer};
use chandlery_ops::core::uniform;

#[test]
fn a_resumed_autoencoder_knows_the_shape_of_its_images() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    let rows = uniform((40, N), &CPU, Philox::new(9, 1))?;
    let pca = Preparation::fit_tensor(&rows, &[StepConfig::Pca { n_components: 3 }], 0);
    let pca = pca.map_err(candle::Error::wrap)?;
    // Images are of raw rows: of another size than what the autoencoder reads where the preparation
    // changes it.
    for (n_visible, preparation) in [(N, Preparation::default()), (3, pca)] {
        let image = Some(ImageShape::grey(2, 3));
        let config = DaeConfig { preparation: preparation.clone(), image, ..DaeConfig::new(n_visible, 4) };
        let dae = Dae::init(config.clone(), Philox::new(6, 0), &CPU)?;
        let training = DaeTrainConfig { batch: BATCH, ..DaeTrainConfig::default() };
        let resumed = |trainer: DaeTrainer| {
            trainer.save(&path, &serde_json::Value::Null)?;
            DaeTrainer::load(&path, &CPU)?.0.model()
        };
        let alone = resumed(DaeTrainer::new(&dae, training.clone(), Philox::new(6, 1))?)?;
        assert_eq!(alone.config(), &config);
        // The images of an autoencoder above others are not of what a checkpoint says it reads.
        let lower = [Dae::init(DaeConfig::new(N, n_visible), Philox::new(6, 2), &CPU)?];
        let philox = Philox::new(6, 1);
        let above = resumed(DaeTrainer::above(&lower, &dae, &half()?, training, philox)?)?;
        let image = config.image.filter(|_| n_visible == N);
        assert_eq!(above.config(), &DaeConfig { image, ..DaeConfig::new(n_visible, 4) });
    }
    Ok(())
}

#[test]
fn the_checkpoint_of_another_trainer_is_refused_by_name() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    feedforward()?.save(&path, &serde_json::Value::Null)?;
    let refused = |error: Option<candle::Error>| first_line(error.expect("loaded"));
    let errors = [
        refused(RbmTrainer::load(&path, &CPU).err()),
        refused(DbnTrainer::load(&path, &CPU).err()),
        refused(LabelledDbnTrainer::load(&path, &CPU).err()),
        refused(OnlineDictionaryTrainer::load(&path, &CPU).err()),
        refused(DaeTrainer::load(&path, &CPU).err()),
        refused(StackedDaeTrainer::load(&path, &CPU).err()),
    ];
    let names = [
        "rbm",
        "deep-belief-network",
        "labelled-deep-belief-network",
        "online-dictionary",
        "denoising-autoencoder",
        "stacked-denoising-autoencoder",
    ];
    for (error, name) in errors.iter().zip(names) {
        let want = format!(
            "{}: not a checkpoint: it is of the trainer `feedforward`, wanted `{name}`",
            path.display()
        );
        assert_eq!(error, &want);
    }
    Ok(())
}

#[test]
fn a_checkpoint_of_which_any_bit_has_changed_is_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("state.safetensors");
    feedforward()?.save(&path, &serde_json::Value::Null)?;
    verify(&path)?;
    let bytes = std::fs::read(&path)?;
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).map_err(candle::Error::wrap)?;
    let sum = header.metadata().as_ref().and_then(|entries| entries.get("crc32")).expect("a checksum");
    assert_eq!(sum.len(), 8);
    let name = path.display().to_string();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        std::fs::write(&path, &damaged)?;
        let message = first_line(verify(&path).expect_err("accepted"));
        assert!(message.starts_with(&name), "byte {at}: {message}");
        assert!(FeedforwardTrainer::load(&path, &CPU).is_err(), "byte {at}");
    }
    for len in [0, 7, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..len])?;
        assert!(verify(&path).is_err(), "{len} bytes");
    }
    let message = first_line(verify(&folder.path().join("none")).expect_err("accepted"));
    assert!(message.contains("none: cannot be read: "), "{message}");
    Ok(())
}
