#pragma once

// Functions over a vector of 16 floats (vec_*.h). Included after the pragma of an instruction set; local to the file.
namespace genai::kernels {
namespace {

/// exp(x) for x < 88, relative error below 2e-7; 0 below -87. exp(0) is 1 exactly.
template <typename V>
V exp_of(V x) {
  // exp(x) = 2^n exp(r), n = round(x / ln 2); ln 2 in two parts, so that n * high is exact; Taylor polynomial of r.
  const V round = V::set1(12582912.0F);
  const V shifted = V::fma(x, V::set1(1.44269504F), round);
  const V n = shifted - round;
  const V high = V::fma(n, V::set1(-0.693359375F), x);
  const V r = V::fma(n, V::set1(2.12194440e-4F), high);
  V y = V::set1(1.0F / 720);
  y = V::fma(y, r, V::set1(1.0F / 120));
  y = V::fma(y, r, V::set1(1.0F / 24));
  y = V::fma(y, r, V::set1(1.0F / 6));
  y = V::fma(y, r, V::set1(0.5F));
  y = V::fma(y, r, V::set1(1.0F));
  y = V::fma(y, r, V::set1(1.0F));
  return V::zero_below(x, V::set1(-87.0F), y * V::pow2(shifted));
}

/// x / (1 + exp(-x)); NaN stays NaN.
template <typename V>
V silu_of(V x) {
  // The order of operands of max lets NaN through.
  const V down = V::zero() - V::max(V::set1(-80.0F), x);
  return x / (V::set1(1.0F) + exp_of(down));
}

}  // namespace
}  // namespace genai::kernels
