"""Formulas of attention that several tests read."""

FORMULAS = {
    "attention": "matmul(softmax(scale(matmul(Q,transpose(K)))),V)",
    "layer 2": "matmul(softmax(scale(matmul(Q,transpose(neg(logsigmoid(neg(K))))))),add(K,Q))",
    "layer 12": "matmul(softmax(scale(matmul(Q,transpose(add(V,scale(K)))))),V)",
}
"""Standard attention, and the two that AutoBERT-Zero found and prints."""
FURTHER = {
    "linear": "matmul(softsign(Q),matmul(transpose(K),V))",
    "distances": "matmul(softmax(neg(euclidean(Q,K))),P)",
    "channels": "transpose(matmul(cosine(transpose(Q),transpose(K)),softmax(transpose(P))))",
    "far channels": "transpose(matmul(euclidean(transpose(Q),transpose(V)),transpose(P)))",
    "alike": "softmax(add(Q,matmul(cosine(K,K),P)))",
}
EVERY = {**FORMULAS, **FURTHER}
"""All functions are among them."""
