#pragma once

#include "genai/sampling/candidates.h"

namespace genai::sampling {

/// Mirostat version 2: keeps the surprise of the output near a target by moving a cut. One object a sequence.
/// Source: Basu et al. 2021, "Mirostat: a neural text decoding algorithm that directly controls perplexity", with the
/// direct cut by surprise that its authors call version 2.
class Mirostat {
 public:
  /// tau: target surprise in bits, > 0. eta: learning rate, in (0, 1].
  Mirostat(float tau, float eta);

  /// Keeps tokens whose surprise -log2 p is at most mu; if there is none, the most likely one. The unlisted tail counts
  /// in the sum of all. Cost: O(size).
  void apply(Candidates& candidates) const;

  /// Moves mu after a token was taken: mu -= eta * (surprise - tau). surprise: of that token in bits, by its
  /// probability among the tokens that were left at the draw.
  void observe(double surprise);

  /// The cut: largest surprise that is kept, in bits. Starts at 2 * tau.
  double mu() const { return mu_; }

 private:
  double tau_;
  double eta_;
  double mu_;
};

}  // namespace genai::sampling
