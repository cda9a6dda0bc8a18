"""Compiles a model or step (`compiler.compile_function`), and reads what the compiler did."""
