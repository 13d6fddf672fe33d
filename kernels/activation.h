// activation.h: the activations of MLPs, a line each. --mlp, the ops of activation.cuh, --help and checkpoints follow.
#pragma once

// X(identifier, word, f(x), df/dx) in the functions of formulas.cuh; a NaN must stay one.
//   gelu    Hendrycks and Gimpel 2016, tanh form: an op of its own (gelu.cuh), because matrix multiplies compute it too
//   relu2   max(0, x)^2                So et al. 2021, "Primer"
//   silu    x s, s = 1 / (1 + e^-x)    Ramachandran et al. 2017; its derivative is s (1 + x (1 - s))
#define ACTIVATIONS(X) \
  X(GELU, gelu, vf_gelu(x), vf_gelu_grad(x)) \
  X(RELU2, relu2, vf_mul(vf_relu(x), vf_relu(x)), vf_mul(vf_set1(2.0f), vf_relu(x))) \
  X(SILU, silu, vf_mul(x, vf_sigmoid(x)), \
    vf_mul(vf_sigmoid(x), vf_fma(x, vf_sub(vf_set1(1.0f), vf_sigmoid(x)), vf_set1(1.0f))))
// X(identifier, word, activation): MLPs that multiply by the activation of a gate (Shazeer 2020, "GLU variants improve
// transformer").
#define GATED_MLPS(X) X(SWIGLU, swiglu, SILU) X(GEGLU, geglu, GELU)

enum Activation : int {
#define X(id, word, f, slope) ACT_##id,
  ACTIVATIONS(X)
#undef X
};
// The MLP of a block: an activation alone, or with a gate.
enum Mlp : int {
#define X(id, ...) MLP_##id,
  ACTIVATIONS(X) GATED_MLPS(X)
#undef X
};
static inline bool mlp_is_gated(Mlp mlp) {
#define X(id, ...) || mlp == MLP_##id
  return false GATED_MLPS(X);
#undef X
}
static inline Activation mlp_activation(Mlp mlp) {
#define X(id, word, activation) if (mlp == MLP_##id) return ACT_##activation;
  GATED_MLPS(X)
#undef X
  return (Activation)mlp;
}
// (word, value), ... of --mlp: option_table.h.
#define MLP_CHOICE(id, word, ...) , (word, MLP_##id)
#define MLP_CHOICES_(none, ...) (__VA_ARGS__)
#define MLP_CHOICES_OF(...) MLP_CHOICES_(__VA_ARGS__)
#define MLP_CHOICES MLP_CHOICES_OF(ACTIVATIONS(MLP_CHOICE) GATED_MLPS(MLP_CHOICE))
