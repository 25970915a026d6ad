//! Compressed sensing: image patches of 64 pixels from 32 random sums of them, by the few atoms
//! that explain the sums.
//!
//! ```sh
//! cargo run -p chandlery --example compressed_sensing
//! ```
use candle::{DType, Device, Result, Tensor};
use chandlery::Philox;
use chandlery::datasets::embedded::natural_images;
use chandlery::dictionary::image::random_patches;
use chandlery::dictionary::{
    Dictionary, DictionaryConfig, DictionaryTrainConfig, PursuitMethod, SparseCoder, overcomplete_dct,
};
use chandlery_ops::core::normal;

const SIDE: usize = 8;
const SUMS: usize = 32;
const NONZERO: usize = 6;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let cpu = &Device::Cpu;
    let mut planes = vec![];
    for image in natural_images()?.images() {
        planes.push(Tensor::from_vec(image.to_f32(), (image.height(), image.width()), cpu)?);
    }
    // Learned from one half of a photograph, and used on the other.
    let (above, below) =
        (planes[0].narrow(0, 0, 256)?.contiguous()?, planes[0].narrow(0, 256, 256)?.contiguous()?);
    let patches = |plane, n, seed| -> Result<Tensor> {
        let rows = random_patches(&[plane], SIDE, n, Philox::new(seed, 0))?;
        rows.broadcast_sub(&rows.mean_keepdim(1)?)
    };
    let (train, test) = (patches(above, 10_000, 0)?, patches(below, 2000, 1)?);
    let config = DictionaryConfig::new(256, SIDE * SIDE, NONZERO);
    let training = DictionaryTrainConfig { iterations: 15, ..DictionaryTrainConfig::default() };
    let learned = Dictionary::fit(config, &train, training, Philox::new(0, 1))?;
    let cosines = overcomplete_dct(256, SIDE)?.to_dtype(DType::F32)?;

    // What is measured of a patch: y = Φ x.
    let phi = (normal((SUMS, SIDE * SIDE), cpu, Philox::new(0, 2))? / (SUMS as f64).sqrt())?;
    let measured = test.matmul(&phi.t()?)?;
    let power = |x: &Tensor| -> Result<f64> { Ok(f64::from(x.sqr()?.sum_all()?.to_scalar::<f32>()?)) };
    let mut left = vec![];
    for (name, atoms) in [("cosines", &cosines), ("learned", learned.atoms())] {
        // y = x (D Φᵀ): the codes of the sums over the sums of the atoms are those of the patches.
        let coder = SparseCoder::new(PursuitMethod::Omp, NONZERO);
        let codes = coder.encode(&measured, &atoms.matmul(&phi.t()?)?)?;
        let share = power(&(codes.reconstruct(atoms)? - &test)?)? / power(&test)?;
        println!("{name}: {:.1} % of the power is wrong", 100. * share);
        left.push(share);
    }
    // Without atoms, the shortest patch with these sums: a projection, which keeps half of the
    // power.
    println!("without atoms {:.0} %", 100. * (1. - SUMS as f64 / (SIDE * SIDE) as f64));
    assert!(left[1] < left[0] && left[1] < 0.35);
    Ok(())
}
