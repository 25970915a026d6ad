//! Partition functions: the exact sums are the same on every device, and annealing finds them on
//! each.
use candle::{DType, Device, Result, Tensor};
use chandlery::Model;
use chandlery::dbn::{Dbn, DbnConfig};
use chandlery::rbm::likelihood::{Ais, AisConfig, Estimate};
use chandlery::rbm::{Rbm, RbmConfig, VisibleUnit};
use chandlery_ops::Philox;
use chandlery_ops::core::{bernoulli, normal};
use chandlery_ops::layers::{
    Rise, annealed_hidden_, annealed_hidden_reference, annealed_visible_, annealed_visible_reference,
};
use chandlery_tests::devices;

const CPU: Device = Device::Cpu;

/// A machine with weights of standard deviation `stdev` and biases of order 1, f32 on the CPU.
fn machine(visible: VisibleUnit, (v, h): (usize, usize), stdev: f64) -> Result<Rbm> {
    let flat = |n, stream| normal(n, &CPU, Philox::new(60, stream));
    let log_variance = (visible == VisibleUnit::GaussianLearned).then(|| flat(v, 3)? * 0.5).transpose()?;
    let weight = (normal((h, v), &CPU, Philox::new(60, 0))? * stdev)?;
    Rbm::from_tensors(
        RbmConfig { visible, ..RbmConfig::new(v, h) },
        weight,
        flat(h, 1)?,
        flat(v, 2)?,
        log_variance,
    )
}

#[test]
#[cfg_attr(not(feature = "cuda"), ignore = "compares a GPU with the CPU")]
fn exact_sums_are_the_same_on_every_device() -> Result<()> {
    // Blocks of a GPU are larger: here it takes these in one, or, at 300 × 15, in several.
    let sizes = [(1, 1), (5, 3), (12, 17), (300, 15)];
    let kinds = [VisibleUnit::Bernoulli, VisibleUnit::Gaussian, VisibleUnit::GaussianLearned];
    for (visible, size) in kinds.into_iter().flat_map(|kind| sizes.map(|size| (kind, size))) {
        let rbm = machine(visible, size, 0.3)?;
        let want = rbm.exact_log_z(&mut |_, _| {})?;
        for device in devices()? {
            let got = rbm.to(DType::F32, &device)?.exact_log_z(&mut |_, _| {})?;
            let off = (got / want - 1.).abs();
            assert!(off < 1e-12, "{visible:?} {size:?} on {:?}: {got}, want {want}", device.location());
        }
    }
    Ok(())
}

#[test]
fn annealed_units_are_those_of_the_reference_on_every_device() -> Result<()> {
    let numbers = |shape: &[usize], stream, device: &Device| {
        normal(shape, &CPU, Philox::new(63, stream))?.to_dtype(DType::F64)?.to_device(device)
    };
    let within = |got: &Tensor, want: &Tensor, bound: f64| {
        let apart = (got - want)?.abs()?.flatten_all()?.to_vec1::<f64>()?;
        Ok::<_, candle::Error>(apart.into_iter().all(|apart| apart < bound))
    };
    // Rows that end within a block of draws, and more of them than threads of a block.
    for (rows, h, v) in [(1, 1, 1), (3, 5, 2), (70, 257, 33), (131, 1023, 785), (5, 4096, 4)] {
        let place = Philox::new(63, 9);
        let reference = |device: &Device| -> Result<_> {
            let of = |shape: &[usize], stream| numbers(shape, stream, device);
            let (units, bias) = ((of(&[rows, h], 0)? * 4.)?, of(&[h], 1)?);
            Ok((units, bias, of(&[rows, v], 2)?, of(&[v], 3)?, of(&[h], 4)?))
        };
        let (units, bias, visible, slope, base) = reference(&CPU)?;
        let rise = Rise { from: 0.3, to: 0.7, visible: &visible, slope: &slope, offset: 0.2 };
        let (want, states) = annealed_hidden_reference(&units, &bias, rise, place)?;
        for device in devices()? {
            let (units, bias, visible, slope, base_there) = reference(&device)?;
            let rise = Rise { visible: &visible, slope: &slope, ..rise };
            let run = || -> Result<[Tensor; 4]> {
                let log_weights = Tensor::zeros(rows, DType::F64, &device)?;
                let (hidden, binary, real) = (units.copy()?, units.copy()?, units.copy()?);
                annealed_hidden_(&log_weights, &hidden, &bias, rise, place)?;
                annealed_visible_(&binary, &bias, &base_there, None, 0.7, place)?;
                annealed_visible_(&real, &bias, &base_there, Some(&base_there), 0.7, place)?;
                let host = |t: Tensor| t.to_device(&CPU);
                Ok([host(log_weights)?, host(hidden)?, host(binary)?, host(real)?])
            };
            let [log_weights, hidden, binary, real] = run()?;
            assert!(within(&log_weights, &want, 1e-13 * (h + v) as f64)?, "{rows} {h}");
            assert_eq!(run()?[0].to_vec1::<f64>()?, log_weights.to_vec1::<f64>()?, "two runs, two results");
            // A mean that differs in its last bit turns a draw in 10⁸ at most.
            assert_eq!(hidden.to_vec2::<f64>()?, states.to_vec2::<f64>()?, "{rows} {h}");
            let (units, bias) = (units.to_device(&CPU)?, bias.to_device(&CPU)?);
            let of = |stdev| annealed_visible_reference(&units, &bias, &base, stdev, 0.7, place);
            assert_eq!(binary.to_vec2::<f64>()?, of(None)?.to_vec2::<f64>()?, "{rows} {h}");
            assert!(within(&real, &of(Some(&base))?, 1e-13)?, "{rows} {h}");
        }
    }
    Ok(())
}

#[test]
fn annealing_finds_the_exact_sum_on_every_device() -> Result<()> {
    for visible in [VisibleUnit::Bernoulli, VisibleUnit::Gaussian, VisibleUnit::GaussianLearned] {
        let rbm = machine(visible, (23, 14), 0.25)?;
        let exact = rbm.exact_log_z(&mut |_, _| {})?;
        for device in devices()? {
            let rbm = rbm.to(DType::F32, &device)?;
            let zeros = Tensor::zeros((1, 23), DType::F32, &device)?;
            let config = AisConfig { n_chains: 513, stages: AisConfig::stages(500), burn_in: 100 };
            let ais = Ais::new(&rbm, &zeros.squeeze(0)?, config)?;
            let forward = ais.forward(Philox::new(61, 0), &mut |_, _| {})?;
            let back = ais.reverse(&zeros, Philox::new(61, 1), &mut |_, _| {})?;
            let again = ais.forward(Philox::new(61, 0), &mut |_, _| {})?;
            assert_eq!(forward.log_z, again.log_z, "one seed, two results on {:?}", device.location());
            for (way, Estimate { lower, upper, .. }) in [("forward", forward.log_z), ("back", back.log_z)] {
                assert!(
                    lower <= exact && exact <= upper && upper - lower < 0.5,
                    "{visible:?} {way} on {:?}: {lower} to {upper}, exact {exact}",
                    device.location()
                );
            }
        }
    }
    Ok(())
}

#[test]
#[cfg_attr(not(feature = "cuda"), ignore = "compares a GPU with the CPU")]
fn likelihoods_and_bounds_are_the_same_on_every_device() -> Result<()> {
    let layers =
        [machine(VisibleUnit::Bernoulli, (13, 9), 0.5)?, machine(VisibleUnit::Bernoulli, (9, 6), 0.5)?];
    let rows = bernoulli(&Tensor::full(0.4f32, (50, 13), &CPU)?, Philox::new(62, 0))?;
    let mut want: Option<(f64, f64)> = None;
    for device in devices()? {
        let on: Vec<Rbm> = layers.iter().map(|rbm| rbm.to(DType::F32, &device)).collect::<Result<_>>()?;
        let dbn = Dbn::from_layers(DbnConfig::new(&[13, 9, 6]), on)?;
        let rows = rows.to_device(&device)?;
        let log_z =
            |i: usize| Ok::<_, candle::Error>(Estimate::exact(dbn.layers()[i].exact_log_z(&mut |_, _| {})?));
        let likelihood = dbn.layers()[0].log_likelihood(&rows, &log_z(0)?)?.value;
        let bound = dbn.log_likelihood_bound(&rows, &log_z(1)?, 300, Philox::new(62, 1))?;
        let (first, bound_of_first) = *want.get_or_insert((likelihood, bound.estimate.value));
        assert!((likelihood - first).abs() < 1e-11, "on {:?}: {likelihood}, want {first}", device.location());
        // A mean that differs in its last bit can turn a draw in a million: one in 135,000 turns
        // this by less.
        let off = (bound.estimate.value - bound_of_first).abs();
        assert!(
            off < bound.standard_error / 10.,
            "on {:?}: {bound:?}, want {bound_of_first}",
            device.location()
        );
    }
    Ok(())
}
