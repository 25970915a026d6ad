//! Sparse latents of what a transformer computes, which learn while it computes: no activation is
//! ever in a file.
//!
//! ```sh
//! cargo run -p chandlery --example activations # a small transformer of random weights, over our own source
//! cargo run -p chandlery --example activations -- MODEL LAYERS LATENTS STEPS OUT TEXT...
//! ```
//!
//! `MODEL` is the folder of a BERT: `config.json`, `model.safetensors` and `tokenizer.json`, as
//! hubs have them. The activations are those after its first `LAYERS` layers, of all tokens of the
//! files `TEXT`. The trained autoencoder is saved to the folder `OUT`. For a GPU, add `--features
//! cuda`.
use candle::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::bert::{BertModel, Config};
use chandlery::sparse_autoencoder::sae::{Kind, Sae, SaeConfig, SaeTrainConfig, SaeTrainer, TopRows};
use chandlery::{Decode, Encode, MinibatchTrainer, Model, Philox, Trainer};
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;

type Any<T> = Result<T, Box<dyn std::error::Error>>;

/// Tokens of a stretch of text, and stretches of a minibatch.
const LENGTH: usize = 128;
const STRETCHES: usize = 32;

/// A transformer, the tokens of texts, and where to go from there.
struct Task {
    transformer: BertModel,
    width: usize,
    stretches: Vec<Vec<u32>>,
    text_of: Box<dyn Fn(u32) -> String>,
    n_latents: usize,
    steps: u64,
    out: Option<PathBuf>,
}

impl Task {
    /// Of a transformer with weights.
    fn of(args: &[String], device: &Device) -> Any<Self> {
        let [model, layers, latents, steps, out, texts @ ..] = args else {
            return Err("six arguments or more: MODEL LAYERS LATENTS STEPS OUT TEXT...".into());
        };
        let file = |name: &str| Path::new(model).join(name);
        let mut config: Config = serde_json::from_str(&std::fs::read_to_string(file("config.json"))?)?;
        config.num_hidden_layers = layers.parse()?;
        let weights = candle::safetensors::load(file("model.safetensors"), device)?;
        let transformer = BertModel::load(VarBuilder::from_tensors(weights, DType::F32, device), &config)?;
        let tokenizer = Tokenizer::from_file(file("tokenizer.json")).map_err(|e| e.to_string())?;
        let mut stretches = vec![];
        for text in texts {
            let tokens = tokenizer.encode_fast(std::fs::read_to_string(text)?, false);
            let tokens = tokens.map_err(|e| e.to_string())?;
            stretches.extend(tokens.get_ids().chunks_exact(LENGTH).map(<[u32]>::to_vec));
        }
        Ok(Self {
            transformer,
            width: config.hidden_size,
            stretches,
            text_of: Box::new(move |token| tokenizer.id_to_token(token).unwrap_or_default()),
            n_latents: latents.parse()?,
            steps: steps.parse()?,
            out: Some(out.into()),
        })
    }

    /// Of a transformer with random weights, whose tokens are the bytes of this package's source.
    fn small(device: &Device) -> Any<Self> {
        let config = Config {
            vocab_size: 256,
            hidden_size: 64,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            intermediate_size: 128,
            ..Config::default()
        };
        let weights = VarMap::new();
        let transformer = BertModel::load(VarBuilder::from_varmap(&weights, DType::F32, device), &config)?;
        let mut stretches = vec![];
        for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))? {
            let path = file?.path();
            if path.is_file() {
                let bytes: Vec<u32> = std::fs::read(path)?.into_iter().map(u32::from).collect();
                stretches.extend(bytes.chunks_exact(LENGTH).map(<[u32]>::to_vec));
            }
        }
        Ok(Self {
            transformer,
            width: config.hidden_size,
            stretches,
            text_of: Box::new(|token| format!("{:?}", char::from(token as u8))),
            n_latents: 512,
            steps: 300,
            out: None,
        })
    }

    /// Activations of stretches, `[stretches · LENGTH, width]`.
    fn activations(&self, places: &[u32], device: &Device) -> candle::Result<Tensor> {
        let tokens = places.iter().flat_map(|&i| self.stretches[i as usize].iter().copied());
        let tokens = Tensor::from_iter(tokens, device)?.reshape((places.len(), LENGTH))?;
        self.transformer.forward(&tokens, &tokens.zeros_like()?, None)?.flatten_to(1)
    }
}

fn main() -> Any<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let device = Device::cuda_if_available(0)?;
    let task = if args.is_empty() { Task::small(&device)? } else { Task::of(&args, &device)? };
    let n = task.stretches.len();
    if n < STRETCHES {
        return Err(format!("{n} stretches of {LENGTH} tokens; {STRETCHES} make a minibatch").into());
    }
    let config = SaeConfig::new(task.width, task.n_latents, Kind::TopK { k: 32.min(task.n_latents) });
    let training = SaeTrainConfig {
        batch: STRETCHES * LENGTH,
        steps: Some(task.steps),
        warm_up: task.steps / 20,
        dead_rows: 1_000_000,
        ..SaeTrainConfig::default()
    };
    let mut philox = Philox::new(0, 0);
    let start = Sae::init(config, philox, &device)?;
    let mut trainer = SaeTrainer::new(&start, training, Philox::new(0, 1))?;

    // Rows of one stretch are alike, so a minibatch takes stretches from all texts.
    for step in 0..task.steps {
        philox = philox.advanced(n);
        let places = philox.sample(n, STRETCHES);
        trainer.step(&task.activations(&places, &device)?, None)?;
        if (step + 1).is_multiple_of(task.steps.div_ceil(6)) || step + 1 == task.steps {
            let of = trainer.metrics()?;
            println!(
                "step {}: {:.3} of the variance unexplained, {:.1} % of latents dead",
                step + 1,
                of.fvu,
                100. * of.dead
            );
        }
    }

    // Which tokens excite the latents that are used most?
    let sae = trainer.model()?;
    let places: Vec<u32> = philox.sample(n, STRETCHES);
    let rows = task.activations(&places, &device)?;
    let mut top = TopRows::new(task.n_latents, 5)?;
    top.add(&sae.encode(&rows)?)?;
    let mut latents: Vec<usize> = (0..task.n_latents).collect();
    latents.sort_by_key(|&j| std::cmp::Reverse(top.uses()[j]));
    for latent in latents.into_iter().take(5) {
        let tokens = top.of(latent).map(|(row, _)| {
            let (place, at) = (row as usize / LENGTH, row as usize % LENGTH);
            (task.text_of)(task.stretches[places[place] as usize][at])
        });
        println!("latent {latent}: {}", tokens.collect::<Vec<_>>().join(" "));
    }
    let unexplained = (&rows - sae.decode(&sae.encode(&rows)?)?)?.sqr()?.sum_all()?;
    let about_mean = rows.broadcast_sub(&rows.mean(0)?)?.sqr()?.sum_all()?;
    let fvu = unexplained.to_scalar::<f32>()? / about_mean.to_scalar::<f32>()?;
    println!("{fvu:.3} of the variance unexplained by 32 of {} latents", task.n_latents);
    if let Some(out) = task.out {
        sae.save_pretrained(out)?;
    } else {
        assert!(fvu < 0.2);
    }
    Ok(())
}
