"""wire/messages"""
