// convolution.cu: convolutions of images with square filters, stride 1, and their gradients.
//
//   maps             y[b, i, j, o] = sum over k, l, c of x[b, i + k - pad, j + l - pad, c] w[o, k,
//                    l, c]
//   to the images    v[b, i, j, c] = sum over k, l, o of h[b, i - k + pad, j - l + pad, o] w[o, k,
//                    l, c]
//   to the weights   g[o, k, l, c] <- alpha * sum over b, i, j of h[b, i, j, o] x[b, i + k - pad, j
//                    + l - pad, c] + beta g[o, k, l, c]
//
// arrays   x, v: [batch, height, width, channels]; y, h: [batch, out_height, out_width, n_filters];
//          w, g: [n_filters, size, size, channels]; parts: [splits, n_filters * size^2 * channels].
//          Contiguous, those that are written overlap no other
// scalars  src/images/convolution/shape.rs: entries of an image, of its maps and of the weights
//          below 2^31
// cost     2 * batch * out_height * out_width * n_filters * size^2 * channels FLOP, which limit it;
//          at 128 x 128 x 1 and 32 filters of 16 x 16 67 TFLOP/s of f32 take .10 ms for 32 images,
//          and three TF32 products at some 300 TFLOP/s of mma.sync .07 ms
// NaN      reaches the sums it is in, see tf32.cuh; zeros around an image are factors in them
// same     each sum has one order on one device; no atomics
// truth    convolution_reference and the references of the gradients, in
//          src/images/convolution/reference.rs
//
// What each kernel does stands in its header.

#include "images/convolution_flat.cuh"
#include "images/convolution_plain.cuh"
#include "images/convolution_rows.cuh"
#include "images/convolution_weights.cuh"
#include "images/convolution_windows.cuh"
