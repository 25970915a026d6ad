//! Folders of other libraries, made here from tensors: what is read gives the codes that their
//! equations give, and what is written is read again.
#![allow(clippy::expect_used)]
use super::{CPU, first_line};
use candle::{DType, Result, Tensor};
use chandlery::sparse_autoencoder::sae::{FileFormat, Kind, Sae, SaeConfig};
use chandlery::{Decode, Encode, LoadOptions, Model, Philox, Preparation};
use chandlery_ops::core::normal;
use serde_json::json;
use std::collections::HashMap;
use std::path::Path;

const D: usize = 5;
const N: usize = 9;

fn draw(shape: &[usize], stream: u64) -> Result<Tensor> {
    normal(shape, &CPU, Philox::new(30, stream))? * 0.5
}

fn write(
    folder: &Path,
    name: &str,
    tensors: &[(&str, &Tensor)],
    config: Option<serde_json::Value>,
) -> Result<()> {
    let tensors: HashMap<&str, Tensor> =
        tensors.iter().map(|(name, t)| Ok((*name, t.contiguous()?))).collect::<Result<_>>()?;
    candle::safetensors::save(&tensors, folder.join(name))?;
    if let Some(config) = config {
        std::fs::write(folder.join("cfg.json"), config.to_string())?;
    }
    Ok(())
}

fn read(folder: &Path) -> Result<Sae> {
    Sae::from_pretrained(folder, &LoadOptions::default())
}

fn close(got: &Tensor, want: &Tensor) -> Result<()> {
    assert_eq!(got.dims(), want.dims());
    let apart = (got - want)?.abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(apart < 1e-5, "{apart}");
    Ok(())
}

/// `values` where they are among the `k` largest of a row.
fn largest(values: &Tensor, k: usize) -> Result<Tensor> {
    let mut rows = values.to_vec2::<f32>()?;
    for row in &mut rows {
        let mut sorted = row.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        row.iter_mut().for_each(|v| *v = if *v >= sorted[k - 1] { v.max(0.) } else { 0. });
    }
    Tensor::new(rows, &CPU)
}

#[test]
fn folders_of_sae_lens_have_the_latents_of_its_equations() -> Result<()> {
    let (w_enc, w_dec, b_dec) = (draw(&[D, N], 0)?, draw(&[N, D], 1)?, draw(&[D], 2)?);
    let (b_enc, threshold) = (draw(&[N], 3)?, draw(&[N], 4)?.abs()?);
    let (b_mag, r_mag) = (draw(&[N], 5)?, draw(&[N], 6)?);
    let x = draw(&[20, D], 7)?;
    let product = x.broadcast_sub(&b_dec)?.matmul(&w_enc)?;
    let pre = product.broadcast_add(&b_enc)?;
    let gate = pre.gt(0f32)?.to_dtype(DType::F32)?;
    let magnitude = product.broadcast_mul(&r_mag.exp()?)?.broadcast_add(&b_mag)?.relu()?;
    let cases = [
        ("standard", pre.relu()?),
        ("topk", largest(&pre, 3)?),
        ("jumprelu", (&pre * pre.broadcast_gt(&threshold)?.to_dtype(DType::F32)?)?),
        ("gated", (gate * magnitude)?),
    ];
    for (architecture, want) in cases {
        let folder = tempfile::tempdir()?;
        let mut tensors = vec![("W_enc", &w_enc), ("W_dec", &w_dec), ("b_dec", &b_dec)];
        match architecture {
            "gated" => tensors.extend([("b_gate", &b_enc), ("b_mag", &b_mag), ("r_mag", &r_mag)]),
            "jumprelu" => tensors.extend([("b_enc", &b_enc), ("threshold", &threshold)]),
            _ => tensors.push(("b_enc", &b_enc)),
        }
        let config = json!({"architecture": architecture, "d_in": D, "d_sae": N, "k": 3});
        write(folder.path(), "sae_weights.safetensors", &tensors, Some(config))?;
        let sae = read(folder.path())?;
        close(&sae.encode(&x)?.to_dense()?, &want)?;
        close(&sae.reconstruct(&x)?, &want.matmul(&w_dec)?.broadcast_add(&b_dec)?)?;
        // In half the numbers, as asked for.
        let options = LoadOptions { dtype: Some(DType::F64), ..LoadOptions::default() };
        assert_eq!(Sae::from_pretrained(folder.path(), &options)?.dtype(), DType::F64);
    }
    Ok(())
}

#[test]
fn folders_of_sparsify_and_dictionary_learning_have_the_latents_of_their_equations() -> Result<()> {
    let (w, w_dec, b_dec, b) = (draw(&[N, D], 0)?, draw(&[N, D], 1)?, draw(&[D], 2)?, draw(&[N], 3)?);
    let x = draw(&[20, D], 7)?;
    let pre = x.broadcast_sub(&b_dec)?.matmul(&w.t()?)?.broadcast_add(&b)?;
    let top = largest(&pre, 2)?;

    let folder = tempfile::tempdir()?;
    let tensors = [("encoder.weight", &w), ("encoder.bias", &b), ("W_dec", &w_dec), ("b_dec", &b_dec)];
    write(folder.path(), "sae.safetensors", &tensors, Some(json!({"k": 2, "num_latents": N, "d_in": D})))?;
    close(&read(folder.path())?.encode(&x)?.to_dense()?, &top)?;
    // A transcoder with a skip connection reads rows as they are.
    let (out, skip, bias) = (draw(&[N, 3], 8)?, draw(&[3, D], 9)?, draw(&[3], 10)?);
    let tensors =
        [("encoder.weight", &w), ("encoder.bias", &b), ("W_dec", &out), ("b_dec", &bias), ("W_skip", &skip)];
    write(folder.path(), "sae.safetensors", &tensors, Some(json!({"k": 2, "transcode": true, "d_in": D})))?;
    let sae = read(folder.path())?;
    let codes = largest(&x.matmul(&w.t()?)?.broadcast_add(&b)?, 2)?;
    let want = (codes.matmul(&out)? + x.matmul(&skip.t()?)?)?.broadcast_add(&bias)?;
    close(&sae.reconstruct_prepared(&x)?, &want)?;

    let decoder = w_dec.t()?.contiguous()?;
    let k = Tensor::new(2i64, &CPU)?;
    let bounds = Tensor::new(0.4f32, &CPU)?;
    let above = (&pre * pre.gt(0.4f32)?.to_dtype(DType::F32)?)?;
    let none = Tensor::new(-1f32, &CPU)?;
    let cases: [(&[(&str, &Tensor)], Tensor); 3] = [
        (&[("b_dec", &b_dec), ("k", &k), ("threshold", &none)], top),
        (&[("b_dec", &b_dec), ("k", &k), ("threshold", &bounds)], above),
        (&[("bias", &b_dec)], pre.relu()?),
    ];
    for (more, want) in cases {
        let folder = tempfile::tempdir()?;
        let weights = [("encoder.weight", &w), ("encoder.bias", &b), ("decoder.weight", &decoder)];
        write(folder.path(), "ae.safetensors", &[&weights[..], more].concat(), None)?;
        close(&read(folder.path())?.encode(&x)?.to_dense()?, &want)?;
    }
    Ok(())
}

#[test]
fn what_is_written_for_others_gives_the_same_codes_when_it_is_read() -> Result<()> {
    let kinds = [
        Kind::Relu,
        Kind::TopK { k: 3 },
        Kind::BatchTopK { k: 3 },
        Kind::JumpRelu,
        Kind::Gated,
        Kind::matryoshka(3, N),
    ];
    let x = (draw(&[20, D], 7)? * 4.)?;
    let mut written = 0;
    for kind in kinds {
        for factor in [1., 0.25] {
            let preparation = Preparation::scale(factor).map_err(candle::Error::wrap)?;
            let config = SaeConfig { preparation, ..SaeConfig::new(D, N, kind.clone()) };
            let sae = Sae::init(config, Philox::new(1, 0), &CPU)?;
            for format in FileFormat::ALL {
                let folder = tempfile::tempdir()?;
                match sae.save_as(folder.path(), format) {
                    Ok(()) => {
                        written += 1;
                        let back = read(folder.path())?;
                        close(&back.encode(&x)?.to_dense()?, &sae.encode(&x)?.to_dense()?)?;
                        close(&back.reconstruct(&x)?, &sae.reconstruct(&x)?)?;
                    }
                    Err(e) => {
                        assert!(first_line(e).contains("has no place for kinds"), "{kind:?} {format:?}")
                    }
                }
            }
        }
    }
    // SAELens has all kinds, sparsify TopK, dictionary_learning those without numbers of latents.
    assert_eq!(written, 2 * (6 + 1 + 4));
    Ok(())
}

#[test]
fn pickles_and_what_does_not_fit_are_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("ae.pt"), "PK")?;
    let said = first_line(read(folder.path()).map(drop).expect_err("a pickle"));
    assert!(said.contains("ae.pt: is a pickle") && said.contains("torch.load('ae.pt'"), "{said}");
    let (w, b) = (draw(&[N, D], 0)?, draw(&[N], 3)?);
    write(
        folder.path(),
        "sae.safetensors",
        &[("encoder.weight", &w), ("encoder.bias", &b)],
        Some(json!({"k": 2})),
    )?;
    let said = first_line(read(folder.path()).map(drop).expect_err("half a model"));
    assert!(said.ends_with("sae.safetensors: cannot be read: it must hold `W_dec`"), "{said}");
    let folder = tempfile::tempdir()?;
    let config = json!({"architecture": "temporal"});
    write(folder.path(), "sae_weights.safetensors", &[("W_enc", &w)], Some(config))?;
    let said = first_line(read(folder.path()).map(drop).expect_err("an unknown kind"));
    assert!(
        said.ends_with("architecture of cfg.json must be standard, topk, jumprelu or gated, got temporal"),
        "{said}"
    );
    Ok(())
}
